"""ConvNets through the commands: trained with their statistics, started from, evaluated, and read by a scorer."""

import csv
import logging
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorflow_datasets as tfds
from flax import nnx
from PIL import Image

from jaxprune import checkpoints, commands, flops, main, models
from jaxprune import open as door
from jaxprune.checkpoints.store import load_params, load_running
from jaxprune.commands.shared import inputs
from jaxprune.data.scenes import CLASS_NAMES
from jaxprune.errors import UserError
from jaxprune.open import NetworkCache
from jaxprune.preprocessing import Preprocessing

CONFIGS = Path(__file__).parent.parent.parent / "configs"


def run(workdir, name="mobileone_s0", **overrides):
    config = main.load_config(f"{CONFIGS}/ranking/proposal.py:smoke,model={name}")
    config.update(overrides)
    return commands.find("finetune")(config, Path(workdir))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "proposal"
    return workdir, run(workdir)


@pytest.mark.slow
def test_its_statistics_are_learned_and_stored(trained):
    workdir, summary = trained
    statistics = load_running(workdir)
    assert statistics and all(not np.all(array == 0) for name, array in statistics.items() if name.endswith(".mean"))
    config = main.load_config(f"{CONFIGS}/ranking/proposal.py:smoke")
    # Averaged weights have the averages of the statistics.
    for ema, name in ((False, ""), (True, "ema_")):
        model, correct, losses = checkpoints.load_model(workdir, ema=ema), [], []
        for batch in inputs.eval_batches(config, inputs.source(config, "eval")):
            logits, _ = model(inputs.normalized(config, jnp.asarray(batch["image"])))
            correct += list((np.argmax(logits, -1) == batch["label"])[batch["valid"]])
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
            losses += list(loss[batch["valid"]])
        assert np.mean(correct) == pytest.approx(summary[f"{name}accuracy"])
        assert np.mean(losses) == pytest.approx(summary[f"{name}loss"], rel=1e-4)
        own = statistics if not ema else {n: load_params(workdir, ema=True)[n] for n in statistics}
        assert ema == any(np.any(own[n] != array) for n, array in statistics.items())


def saved(folder, name):
    """A file with a small untrained ConvNet."""
    path = folder / f"{name}.safetensors"
    options = {**models.tiny(name), "num_classes": len(CLASS_NAMES)}
    model = models.create(name, **options, rngs=nnx.Rngs(0))
    model.preprocessing = model.preprocessing.with_size(32)
    checkpoints.save_model(model, path, class_names=CLASS_NAMES)
    return path


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("files"), "mobileone_s0")


@pytest.mark.slow
@pytest.mark.parametrize("network", ["untrained", pytest.param("trained", marks=pytest.mark.slow)])
def test_papr_reads_it(network, request):
    network = request.getfixturevalue(network)
    text = f"papr:run={network[0] if isinstance(network, tuple) else network}"
    opened = door.open_scorers([text], NetworkCache(), preprocessing=Preprocessing((32, 32)), grid=(4, 4))
    assert opened.scorers[text](jnp.zeros((2, 32, 32, 3))).shape == (2, 16)


@pytest.mark.slow
def test_another_run_starts_from_it(trained, tmp_path, caplog):
    workdir, _ = trained
    caplog.set_level(logging.INFO)
    run(tmp_path / "run", run=str(workdir), trainable_blocks=0)
    before, after = load_params(workdir), load_params(tmp_path / "run")
    assert {name for name in before if np.any(before[name] != after[name])} == {"linear.kernel", "linear.bias"}
    assert "with its head of 10 classes" in caplog.text


@pytest.mark.slow
def test_a_run_starts_from_a_published_file(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    run(tmp_path / "first", "resnet18")
    model = checkpoints.load_model(tmp_path / "first")
    checkpoints.save_pretrained(model, tmp_path / "resnet.safetensors")
    model_settings = {"weights": str(tmp_path / "resnet.safetensors")}
    summary = run(tmp_path / "second", "resnet18", model=model_settings, epochs=0.25)
    assert summary["steps"] == 1 and "with its head of 10 classes" in caplog.text


@pytest.mark.slow
def test_what_a_convnet_lacks_is_refused(untrained, tmp_path):
    with pytest.raises(UserError, match="A plan reduces the tokens of a transformer"):
        run(tmp_path / "reduced", reduction={"method": "topk"})
    with pytest.raises(UserError, match=r"set distill\.tokens=0"):
        run(tmp_path / "taught", teacher=str(untrained))


@pytest.mark.slow
def test_images_of_several_classes_train_a_proposal(tmp_path):
    data = {"source": "tfds", "name": "voc/2012", "label_key": "objects.label"}
    with tfds.testing.mock_data(num_examples=16):
        summary = run(tmp_path, loss="asymmetric", data=data)
    assert 0 <= summary["map"] <= 1 and 0 <= summary["ema_map"] <= 1


def examined(task, run, **overrides):
    config = main.load_config(f"{CONFIGS}/{task}.py")
    config.update(run=str(run), **overrides)
    return config


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "resnet"
    return workdir, run(workdir, "resnet18")


@pytest.fixture(scope="module")
def untrained_resnet(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("files"), "resnet18")


def test_a_file_of_it_is_evaluated(untrained_resnet, tmp_path):
    config = examined("evaluate", untrained_resnet, data={"source": "scenes", "num_eval": 6}, batch_size=4)
    summary = commands.find("evaluate")(config, tmp_path)
    assert summary["images"] == 6 and summary["accuracy_low"] <= summary["accuracy"] <= summary["accuracy_high"]


@pytest.mark.slow
def test_it_is_evaluated_measured_and_predicts(resnet, tmp_path):
    workdir, trained_summary = resnet
    summary = commands.find("evaluate")(examined("evaluate", workdir), tmp_path / "evaluate")
    assert summary["accuracy"] == pytest.approx(trained_summary["accuracy"])
    assert summary["images"] == trained_summary["held_out"]

    measured = examined("benchmark", workdir, rounds=1, batch_size=2, num_images=4)  # without its default plans
    assert commands.find("benchmark")(measured, tmp_path / "benchmark")["fastest"] == "dense"
    (row,) = csv.DictReader((tmp_path / "benchmark" / "benchmark.csv").open())
    model = checkpoints.load_model(workdir)
    assert float(row["GFLOPs"]) == pytest.approx(flops.convnet(model, model.preprocessing.sides) / 1e9)

    corrupted = examined("robustness", workdir, corruptions=("fog",), severities=(3,), num_images=4)
    assert 0 <= commands.find("robustness")(corrupted, tmp_path / "robustness")["corrupted"] <= 1

    Image.new("RGB", (40, 30), "green").save(tmp_path / "photo.png")
    predicted = commands.find("predict")(examined("predict", workdir, image=str(tmp_path / "photo.png")), tmp_path)
    assert 0 < predicted["confidence"] <= 1


@pytest.mark.parametrize("task", ["evaluate", "benchmark", "robustness"])
@pytest.mark.parametrize("plan", [{"plans": ("topk",)}, {"plans": ("from_scores",), "scorer": "centre"}])
def test_plans_on_it_are_refused_in_one_line(task, plan, untrained_resnet, tmp_path):
    with pytest.raises(UserError, match=r"A plan reduces the tokens of a transformer, .* leave out the plans") as error:
        commands.find(task)(examined(task, untrained_resnet, data={"source": "scenes"}, **plan), tmp_path)
    assert "ResNet" in str(error.value) and len(str(error.value)) < 300
