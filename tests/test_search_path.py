"""Where programs of this package search for modules: not in the current folder, where data sets are unpacked."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from jaxprune import commands, config_imports, main, search_path
from jaxprune.data.prepare import prepare

ROOT = Path(__file__).parent.parent
INSTALLED = ["/python.zip", "/python", "/site-packages"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return str(tmp_path)


def left(monkeypatch, path):
    monkeypatch.setattr(sys, "path", path)
    search_path.leave_out_working_directory()
    return sys.path


def test_the_current_folder_is_left_out(here, monkeypatch):
    assert left(monkeypatch, [here, *INSTALLED]) == INSTALLED
    assert left(monkeypatch, ["", *INSTALLED]) == INSTALLED
    # The folder of a script stays.
    assert left(monkeypatch, ["/scripts", *INSTALLED]) == ["/scripts", *INSTALLED]


def test_a_package_installed_from_the_current_folder_stays(here, monkeypatch):
    assert left(monkeypatch, [here, *INSTALLED, here]) == [*INSTALLED, here]


def test_the_current_folder_stays_where_pythonpath_names_it(here, monkeypatch):
    for named in (here, "."):
        monkeypatch.setenv("PYTHONPATH", f"/mine:{named}")
        assert left(monkeypatch, [here, "/mine", here, *INSTALLED]) == ["/mine", here, *INSTALLED]
    # An empty entry stands for it too, but nobody means it.
    monkeypatch.setenv("PYTHONPATH", ":/mine")
    assert left(monkeypatch, [here, here, "/mine", *INSTALLED]) == ["/mine", *INSTALLED]


def test_the_package_is_found_last_where_it_is_not_installed(tmp_path):
    assert search_path.with_package(["/python", "/site-packages"]) == ["/python", "/site-packages", str(ROOT)]
    assert search_path.with_package(["/python", str(ROOT), "/more"]) == ["/python", str(ROOT), "/more"]
    (tmp_path / "jaxprune").mkdir()
    (tmp_path / "jaxprune" / "__init__.py").touch()  # another version
    assert search_path.with_package(["/python", str(tmp_path)]) == ["/python", str(ROOT), str(tmp_path)]


@pytest.fixture
def finder():
    before, names, folders = list(sys.meta_path), set(config_imports._FINDER._names), config_imports._FINDER._folders[:]
    yield config_imports._FINDER
    sys.meta_path[:] = before
    config_imports._FINDER._names, config_imports._FINDER._folders = names, folders


def test_a_config_imports_what_lies_beside_it_and_in_the_current_folder(here, finder, tmp_path):
    beside = tmp_path / "mine"
    (tmp_path / "nets_of_mine" / "parts").mkdir(parents=True)
    beside.mkdir()
    (beside / "a.py").write_text(
        "import numpy, sizes_of_mine\nfrom nets_of_mine.wide import WIDTH\nfrom ml_collections import ConfigDict\n"
        "def get_config(arg):\n    return ConfigDict({'size': sizes_of_mine.SIZE, 'width': WIDTH})\n"
    )
    (beside / "sizes_of_mine.py").write_text("import bigger_sizes_of_mine\nSIZE = bigger_sizes_of_mine.SIZE\n")
    (beside / "bigger_sizes_of_mine.py").write_text("SIZE = 7\n")
    (beside / "numpy.py").write_text("raise RuntimeError\n")
    (tmp_path / "nets_of_mine" / "__init__.py").touch()
    (tmp_path / "nets_of_mine" / "wide.py").write_text("import widths_of_mine\nWIDTH = widths_of_mine.WIDTH\n")
    (tmp_path / "widths_of_mine.py").write_text("WIDTH = 3\n")
    for folder in (tmp_path, beside):
        (folder / "never_named_by_mine.py").touch()
    config = main.load_config(str(beside / "a.py"))
    assert (config.size, config.width) == (7, 3)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("never_named_by_mine")


EVIL = "hostile_module_of_data.Evil"

# Programs in a folder full of modules that leave a mark.
HOSTILE = {
    *sys.stdlib_module_names,
    *("absl", "array_record", "cv2", "datasets", "etils", "flax", "grain", "jax", "jax_plugins", "jaxlib", "jaxtyping"),
    *("ml_collections", "numpy", "optax", "orbax", "PIL", "scipy", "tensorboardX", "tensorflow", "tqdm", "av"),
    *("_small", "configs", "libtpu", "hostile_module_of_data"),
}


def modules_of_the_start(tmp_path):
    """The modules that Python imports to start `python -m package.module`, which nobody can prevent."""
    package = tmp_path / "start" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import importlib, pkgutil")
    (package / "module.py").write_text("import sys; print(*sys.modules)")
    done = subprocess.run(
        [sys.executable, "-m", "package.module"], cwd=package.parent, capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.fixture
def folder(tmp_path):
    """A folder with modules of all names that Python or this package imports later."""
    place = tmp_path / "unpacked"
    place.mkdir()
    for name in HOSTILE - modules_of_the_start(tmp_path):
        (place / f"{name}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'a').write('{name}\\n')\n")
    metadata = place / "hostile-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n")
    groups = ("jaxprune.reduction", "jaxprune.scoring", "jaxprune.mim", "jaxprune.models", "jax_plugins")
    lines = [f"[{group}]\nhostile = hostile_module_of_data:Evil\n" for group in groups]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return place


def run(folder, *arguments, **environ):
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), **environ}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True)
    mark = folder.parent / "mark"
    assert not mark.exists(), f"imported: {mark.read_text()}\n{done.stderr[-2000:]}"
    return done


@pytest.mark.slow
@pytest.mark.parametrize("module", ["main", "tools.prepare", "tools.convert"])
def test_a_program_imports_nothing_from_the_current_folder(module, folder):
    for path in (str(ROOT), f"{ROOT}{os.pathsep}"):
        done = run(folder, "-m", f"jaxprune.{module}", "--help", PYTHONPATH=path)
        assert done.returncode == 0, done.stderr[-2000:]


WORKERS = """
from jaxprune.data.loader import eval_batches
from jaxprune.data.source_factory import create_source
from jaxprune.preprocessing import Preprocessing

if __name__ == "__main__":
    source = create_source("scenes", split="test", num_examples=8, image_size=16, in_memory=False)
    batches = eval_batches(source, batch_size=4, preprocessing=Preprocessing((16, 16)), num_workers=1)
    assert len([batch["image"] for batch in batches]) == 2
"""


@pytest.mark.slow
def test_worker_processes_import_nothing_from_the_current_folder(folder, tmp_path):
    (tmp_path / "program.py").write_text(WORKERS)
    done = run(folder, str(tmp_path / "program.py"))
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_a_checkout_that_is_not_installed_runs_from_its_folder(tmp_path):
    """Python finds the package in the current folder; its modules, its restart and its workers find it after that."""
    for name in ("jaxprune", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "tensorflow.py").write_text(f"open({str(tmp_path.parent / 'mark')!r}, 'w')\n")
    text = run(tmp_path, "-m", "jaxprune.main", "--help", PYTHONPATH="").stdout
    assert "usage: python -m jaxprune.main" in text
    leave_out = "from jaxprune import search_path\nsearch_path.leave_out_working_directory()\n"
    (tmp_path / "program.py").write_text(leave_out + WORKERS)
    done = run(tmp_path, str(tmp_path / "program.py"), PYTHONPATH="")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_somebody_elses_run_names_data_that_name_code(folder, tmp_path):
    """`evaluate` reads the data that a run names, and they name a module: beside them, and in the current folder."""
    given = tmp_path / "given"
    config = main.load_config(str(ROOT / "configs" / "reduction" / "small.py:smoke"))
    commands.find(config.task)(config, given)
    for name in ("ant", "bee"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / "pictures" / name / f"{number}.png")
    data = prepare(tmp_path / "pictures", tmp_path / "sets", name="hostile").path
    features = data / "features.json"
    features.write_text(features.read_text().replace("tensorflow_datasets.core.features.image_feature.Image", EVIL))
    for place in (data, given):
        (place / "hostile_module_of_data.py").write_text((folder / "hostile_module_of_data.py").read_text())
    record = json.loads((given / "config.json").read_text())
    record["config"]["data"].update(source="tfds", name=str(data), path="", train_split="train", eval_split="train")
    (given / "config.json").write_text(json.dumps(record))
    done = run(folder, "-m", "jaxprune.main", "--config=configs/evaluate.py", f"--config.run={given}", "--workdir=out")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"{str(features)!r} names the feature class {EVIL!r}" in line and "Traceback" not in done.stderr
