"""A run is exported by the command line, and served by the programs in `examples/`."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxprune import commands, main
from jaxprune.errors import UserError
from jaxprune.export import as_onnx

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent
HAS_ONNX = not any(as_onnx.importlib.util.find_spec(name) is None for name in as_onnx.NEEDED)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """What the smoke run returns, and its folder, with pictures of two sizes."""
    folder = tmp_path_factory.mktemp("exported")
    config = main.load_config(str(ROOT / "configs/export.py:smoke"))
    config.formats = ("stablehlo", "onnx") if HAS_ONNX else ("stablehlo",)
    found = commands.find("export")(config, folder / "run")
    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    for index, shape in enumerate([(32, 32, 3), (50, 70, 3)]):
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(folder / "photos" / f"{index}.png")
    return found, folder


def serve(kind, model, images, folder):
    command = [sys.executable, str(ROOT / "examples" / f"serve_{kind}.py"), str(model), str(images)]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind", ["stablehlo", "onnx"])
def test_a_smoke_run_is_served(kind, exported):
    found, folder = exported
    if kind not in found:
        pytest.skip("needs jaxprune[export]")
    assert Path(found[kind]).is_file() and "Export" in (folder / "run" / "report.html").read_text()
    lines = serve(kind, found[kind], folder / "photos", folder)
    assert len(lines) == 2 and all("%" in line and "rows left" in line for line in lines)
    pixels = np.stack([np.asarray(Image.open(folder / "photos" / "0.png"))])
    np.save(folder / "images.npy", pixels)
    (line,) = serve(kind, found[kind], folder / "images.npy", folder)
    assert line.partition(": ")[2] == lines[0].partition(": ")[2]


def test_what_cannot_be_exported_is_refused(tmp_path):
    config = main.load_config(str(ROOT / "configs/export.py"))
    with pytest.raises(UserError, match=r"Give --config\.run=RUN"):
        commands.find("export")(config, tmp_path / "run")
    config.update(formats=("onxx",), inputs="uint16")
    with pytest.raises(UserError, match=r"(?s)(?=.*Did you mean 'onnx')(?=.*Did you mean 'uint8')"):
        commands.find("export")(config, tmp_path / "run")
