"""Networks that spend by image are trained, saved, loaded and evaluated like others."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from jaxprune import checkpoints, commands, dynamic, export, main, models
from jaxprune.commands.export.by_image import export_segments
from jaxprune.commands.finetune import by_image
from jaxprune.commands.shared import networks
from jaxprune.data import Scenes
from jaxprune.dynamic.parts.gated import GatedNetwork
from jaxprune.errors import UserError
from jaxprune.export.verify import Verified

CONFIGS = Path(__file__).parents[2] / "configs"


def trained(name, workdir, **settings):
    config = main.load_config(f"{CONFIGS}/dynamic/{name}.py:smoke")
    with config.unlocked():
        for key, value in settings.items():
            config[key] = value
    return commands.find(config.task)(config, workdir)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dvt", "dyn_perceiver", "sar", "laudnet"])
def test_a_trained_network_is_loaded_and_evaluated(name, tmp_path):
    summary = trained(name, tmp_path / "run")
    assert 0 <= summary["accuracy"] <= 1 and summary["steps"] == summary["planned_steps"]
    model = checkpoints.load_model(tmp_path / "run")
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(np.uint8)
    logits = np.asarray(jax.jit(model)(images))
    assert logits.shape[:2] == (len(model.segments()), 2) and np.isfinite(logits).all()
    config = main.load_config(f"{CONFIGS}/evaluate.py")
    with config.unlocked():
        config.run = str(tmp_path / "run")
    evaluated = commands.find("evaluate")(config, tmp_path / "evaluation")
    # Half of the images choose thresholds, where there are any to choose.
    assert evaluated["images"] == (12 if isinstance(model, GatedNetwork) else 6)
    page = (tmp_path / "evaluation" / "report.html").read_text()
    assert "Accuracy against cost" in page and "images/s" in page
    assert ("masks of places" in page) == isinstance(model, GatedNetwork)
    # Saved to one file, it is the same network.
    checkpoints.save_model(model, tmp_path / "model.safetensors")
    again = checkpoints.load_model(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(jax.jit(again)(images), logits)


@pytest.fixture(scope="module")
def cascade(tmp_path_factory):
    """The file of a cascade for the classes of the built-in scenes."""
    path = tmp_path_factory.mktemp("cascade") / "cascade.safetensors"
    sizes = {"patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": len(Scenes.class_names)}
    networks = [models.create("vit", img_size=side, **sizes, rngs=nnx.Rngs(side)) for side in (16, 32)]
    model = dynamic.create("cascade", networks=networks)
    model.set_dial([(-1e8, -1e8), (1e8, -1e8)])
    checkpoints.save_model(model, path, class_names=Scenes.class_names)
    return str(path)


def run(task, workdir, **settings):
    config = main.load_config(f"{CONFIGS}/{task}.py")
    with config.unlocked():
        config.update_from_flattened_dict(settings)
    return commands.find(task)(config, workdir)


SCENES = {"data.source": "scenes", "data.num_examples": 24, "batch_size": 8}


def test_a_saved_cascade_predicts(cascade, tmp_path):
    summary = run("predict", tmp_path, run=cascade, image="scenes")
    assert summary["class"] in Scenes.class_names and summary["exit"] == 1 and Path(summary["picture"]).is_file()
    page = (tmp_path / "report.html").read_text()
    assert "it leaves at exit 1 of 2" in page and "What each exit says" in page


@pytest.mark.slow
def test_a_saved_cascade_is_measured(cascade, tmp_path):
    speeds = run("benchmark", tmp_path / "a", run=cascade, batch_size=4, rounds=2)
    assert list(speeds) == ["images/s, all at exit 1", "images/s, all at exit 2"]
    speeds = run("benchmark", tmp_path / "b", run=cascade, rounds=2, num_images=16, **SCENES)
    assert len(speeds) == 2 + 5 + 2 and min(speeds.values()) > 0
    page = (tmp_path / "b" / "report.html").read_text()
    assert "step 2 of 2 of the dial" in page and "Accuracy against cost" in page
    evaluated = run("evaluate", tmp_path / "c", run=cascade, **SCENES)
    assert evaluated["accuracy, step 1 of 2 of the dial"] == evaluated["accuracy, all at exit 1"]


def test_files_of_an_export_are_those_of_its_index_in_order(tmp_path, monkeypatch, capsys):
    names, sizes = [f"segment_{number}.stablehlo" for number in range(11)], []

    def written(model, folder, *, batch_size=32, **_):
        folder.mkdir(exist_ok=True)
        for number, name in enumerate(names):
            (folder / name).write_bytes(bytes(100_000 * number))
        (folder / "segment_11.stablehlo").write_bytes(b"earlier")
        (folder / "cascade.json").write_text(json.dumps({"segments": [{"file": name} for name in names]}))
        sizes.append(batch_size)
        return [Verified(float(number), 8, 0) for number in range(11)]

    monkeypatch.setattr(export, "cascade", written)
    monkeypatch.setattr(networks, "by_image", lambda *_: (None, (), "cascade.safetensors"))
    monkeypatch.setattr(networks, "class_names", lambda *_: ())
    monkeypatch.chdir(tmp_path)
    config = main.load_config(f"{CONFIGS}/export.py")
    export_segments(config, Path("out"))
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "segment_" in line]
    assert [row[0] for row in rows] == [f"out/stablehlo/{name}" for name in names]
    assert [(float(row[1]), float(row[2])) for row in rows] == [(number / 10, number) for number in range(11)]
    config.batch_size = 5
    export_segments(config, Path("out"))
    assert sizes == [32, 5]


def test_files_that_take_any_batch_refuse_a_size(tmp_path):
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 1, "num_classes": 2}
    checkpoints.save_model(models.create("vit", **sizes, rngs=nnx.Rngs(0)), tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"config\.batch_size=8: only files .*model\.safetensors take any: leave"):
        run("export", tmp_path / "export", run=str(tmp_path / "model.safetensors"), batch_size=8)


def test_a_cascade_is_exported_without_a_plan(cascade, tmp_path):
    with pytest.raises(UserError, match=r"leave --config\.plan and --config\.img_size out"):
        run("export", tmp_path, run=cascade, plan="tome:r=1")


@pytest.mark.parametrize("task", ["benchmark", "evaluate"])
@pytest.mark.parametrize("settings", [{"plans": ("tome",)}, {"img_size": 64}], ids=str)
def test_a_cascade_takes_no_plans_and_no_other_size(task, settings, cascade, tmp_path):
    with pytest.raises(UserError, match="no plans and no other size"):
        run(task, tmp_path, run=cascade, **settings, **SCENES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trainable_blocks": 2}, "trainable_blocks"),
        ({"loss": "asymmetric"}, "loss"),
        ({"only_method": True}, "only_method=True: set it to False"),
        ({"keep_rate_warmup": {"start": 0, "epochs": 0.5}}, "keep_rate_warmup.epochs"),
    ],
)
def test_settings_of_other_networks_are_refused(settings, message, tmp_path):
    with pytest.raises(UserError, match=f"without {message}"):
        trained("dvt", tmp_path / "run", **settings)


def test_images_that_are_not_square_are_refused():
    config = main.load_config(f"{CONFIGS}/dynamic/sar.py:smoke")
    with config.data.ignore_type():
        config.data.img_size = (32, 64)
    with pytest.raises(UserError, match=r"data.img_size=\(32, 64\): sar reads square images"):
        by_image.arguments(config, 3)
