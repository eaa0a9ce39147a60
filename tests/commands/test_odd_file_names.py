"""Classes and files whose names hold signs of formulas, or bytes that are not UTF-8, in whole tasks."""

from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from PIL import Image

from jaxprune import checkpoints, commands, main, models
from jaxprune.evaluate.score_files import read_part

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parent.parent.parent / "configs"
CLASSES = ("a$b$c", "caf\udce9")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name in CLASSES:
        (folder / name).mkdir()
        for number in range(3):
            with (folder / name / f"\udcff$x$_{number}.png").open("wb") as file:  # Pillow takes no such name
                Image.fromarray(rng.integers(0, 256, (16, 20, 3)).astype(np.uint8)).save(file, "PNG")
    return folder


def run(name, workdir, **settings):
    config = main.load_config(f"{CONFIGS / name}.py:smoke")
    config.update(settings)
    return commands.find(config.task)(config, workdir)


def test_evaluate(pictures, tmp_path):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 1, "num_classes": 2}
    network = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    checkpoints.save_model(network, tmp_path / "network.safetensors", class_names=CLASSES)
    data = {"source": "folder", "path": str(pictures), "held_out": 0.9}
    found = run("evaluate", tmp_path / "run", run=str(tmp_path / "network.safetensors"), data=data)
    assert found["images"] >= 2 and "a$b$c" in (tmp_path / "run" / "report.html").read_text()


def test_score(pictures, tmp_path):
    assert run("score", tmp_path, images=str(pictures), batch_size=6)["images"] == 6
    (path,) = (tmp_path / "scores").iterdir()
    assert {Path(file).parent.name for file in read_part(path).files} == set(CLASSES)
