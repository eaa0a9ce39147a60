"""Tasks find the same on eight devices as on one, with batches that these cannot share evenly where none trains."""

import csv
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from jaxprune import commands, main, parallel
from jaxprune.commands.shared import inputs
from jaxprune.evaluate.score_files import read_part

pytestmark = pytest.mark.eight_devices

CONFIGS = Path(__file__).parent.parent.parent / "configs"
MESHES = {"one": lambda config: parallel.make_mesh({"data": 1}, jax.devices()[:1]), "eight": inputs.mesh}


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("dense") / "run"
    config = main.load_config(str(CONFIGS / "reduction/small.py:smoke"))
    commands.find("finetune")(config, workdir)
    return str(workdir)


def on_both(config, tmp_path, monkeypatch):
    """Returns the summaries of a task on one device and on eight, and where each run is."""
    found = {}
    for name, mesh in MESHES.items():
        monkeypatch.setattr(inputs, "mesh", mesh)
        found[name] = commands.find(config.task)(config, tmp_path / name)
    return found["one"], found["eight"]


def same(ours, theirs):
    """Compares two summaries or rows: text and counts exactly, numbers up to the order of additions."""
    assert list(ours) == list(theirs)
    for name in ours:
        try:
            np.testing.assert_allclose(float(ours[name]), float(theirs[name]), rtol=1e-4, atol=1e-6, err_msg=name)
        except (TypeError, ValueError):
            assert ours[name] == theirs[name]


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_evaluation_under_plans(dense, tmp_path, monkeypatch):
    config = main.load_config(str(CONFIGS / "evaluate.py"))
    config.update(run=dense, plans=("topk:keep_rate=0.5", "tome"), reduction_loc=(1,), batch_size=6)
    one, eight = on_both(config, tmp_path, monkeypatch)
    assert one["images"] == 12
    same(one, eight)


def test_pruning_by_scorers(dense, tmp_path, monkeypatch):
    config = main.load_config(str(CONFIGS / f"prune.py:smoke,run={dense}"))
    config.update(rounds=0, batch_size=5, scorers=("centre", "random"))
    same(*on_both(config, tmp_path, monkeypatch))
    for name in ("prune.csv", "scorers.csv"):
        for ours, theirs in zip(rows(tmp_path / "one" / name), rows(tmp_path / "eight" / name), strict=True):
            same(ours, theirs)


def test_recall_of_object_patches(tmp_path, monkeypatch):
    config = main.load_config(str(CONFIGS / "ranking/recall.py:smoke"))
    config.batch_size = 5
    same(*on_both(config, tmp_path, monkeypatch))
    one, eight = (tmp_path / name / "patch_recall.csv" for name in MESHES)
    assert rows(one) == rows(eight)


def test_scores_of_pictures(tmp_path, monkeypatch):
    on_both(main.load_config(str(CONFIGS / "score.py:smoke")), tmp_path, monkeypatch)
    one, eight = (sorted((tmp_path / name / "scores").iterdir()) for name in MESHES)
    assert [path.name for path in one] == [path.name for path in eight] and len(one) == 2
    for ours, theirs in zip(map(read_part, one), map(read_part, eight), strict=True):
        assert ours.files == theirs.files
        for name in ("norm", "centre", "random"):
            np.testing.assert_allclose(ours.scores[name], theirs.scores[name], rtol=1e-5)


def test_a_prediction(dense, tmp_path, monkeypatch):
    Image.fromarray(np.full((50, 40, 3), 99, np.uint8)).save(tmp_path / "grey.png")
    config = main.load_config(str(CONFIGS / "predict.py"))
    config.update(run=dense, image=str(tmp_path / "grey.png"))
    one, eight = on_both(config, tmp_path, monkeypatch)
    assert one["class"] == eight["class"] and one["confidence"] == pytest.approx(eight["confidence"], rel=1e-4)


def test_accuracy_beside_speed(dense, tmp_path, monkeypatch):
    config = main.load_config(str(CONFIGS / "benchmark.py:batch=5,rounds=1"))
    config.update(run=dense, plans=("topk",), reduction_loc=(1,))
    on_both(config, tmp_path, monkeypatch)
    for ours, theirs in zip(*(rows(tmp_path / name / "benchmark.csv") for name in MESHES), strict=True):
        for column in ("plan", "GFLOPs", "accuracy", "agreement"):
            assert ours[column] == theirs[column]


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", ["mim/imagenet.py", "reduction/small.py", "mim/linear_probe.py", "ranking/scenes.py"]
)
def test_training(config, dense, tmp_path, monkeypatch):
    config = main.load_config(str(CONFIGS / f"{config}:smoke"))
    config.seed = 1
    if config.task == "linear_probe":
        config.run = dense
    one, eight = on_both(config, tmp_path, monkeypatch)
    for summary in (one, eight):
        for measured in ("seconds", "wall_clock"):
            summary.pop(measured, None)
    same(one, eight)
