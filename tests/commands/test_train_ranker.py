"""The tasks `train_ranker` and `patch_recall`, in their small form, as the command line runs them."""

import csv
import json
import logging
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict

from jaxprune import checkpoints, commands, main, mim, ranking
from jaxprune.checkpoints.build import build
from jaxprune.commands import evaluate
from jaxprune.commands.shared import networks
from jaxprune.commands.train_ranker.settings import label_model
from jaxprune.data.annotations.base import Annotated
from jaxprune.errors import UserError
from jaxprune.evaluate.collectors.patch_recall import ALL, ANY, LEARNED, UNLEARNED, class_groups, recall_table, view
from jaxprune.nn.params import split
from jaxprune.preprocessing import Preprocessing

CONFIGS = Path(__file__).parent.parent.parent / "configs" / "ranking"


def load(config: str, **overrides):
    loaded = main.load_config(str(CONFIGS / config))
    loaded.unlock()
    loaded.update(overrides)
    return loaded


class Pictures(list):
    """Annotated images without files."""

    name = "pictures"


def run(config, workdir):
    return commands.find(config.task)(config, Path(workdir))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of weights of the autoencoder that the small configs describe."""
    path = tmp_path_factory.mktemp("mae") / "mae.safetensors"
    mae = mim.create(**load("scenes.py:smoke").mim.to_dict(), rngs=nnx.Rngs(1))
    checkpoints.save_pretrained(mae, path)
    return str(path)


@pytest.fixture(scope="module")
def trained(weights, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("ranker") / "run"
    return workdir, run(load("scenes.py:smoke", label_model=weights, warm_start=True), workdir)


@pytest.mark.slow
def test_a_ranker_is_trained_and_reported(trained):
    workdir, summary = trained
    assert summary["steps"] == 4 and 0 <= summary["recall"] <= 1 and -1 <= summary["tau"] <= 1
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert {"loss", "tau", "grad_norm", "learning_rate"} <= set(rows[0])
    assert {"tau", "tau_whole_image", "recall", "recall_centre", "recall_norm"} <= set(rows[-1])
    page = (workdir / "report.html").read_text()
    for words in ("Ranking patches", "object patches found", "with and without the patch marked in red"):
        assert words in page
    ranker = checkpoints.load_model(workdir)
    assert isinstance(ranker, ranking.Ranker) and ranker.num_patches == 16


@pytest.mark.slow
def test_scorers_are_compared_on_objects(trained, tmp_path):
    workdir, _ = trained
    found = run(load(f"recall.py:smoke,run={workdir}"), tmp_path)
    assert found["images"] == 12
    with (tmp_path / "patch_recall.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["scorer"] for row in rows} == {f"ltrp:run={workdir}", "random", "centre", "norm"}
    assert {row["class"] for row in rows} > {ANY, ALL, "disc", "star"}
    page = (tmp_path / "report.html").read_text()
    assert "The patches that each scorer keeps" in page and "Recall by class" in page
    assert "counts each patch once" in page and "± = the standard error of the mean" in page and "precision" in page
    assert "recall of object patches at keep rate 0.3" in page


@pytest.mark.slow
@pytest.mark.parametrize("learns", [False, True])
def test_a_classifier_is_trained_on_what_the_ranker_selects(learns, trained, tmp_path):
    ranker, _ = trained
    arguments = f"efficient.py:smoke,ranker={ranker},run={ranker},train_scorer={learns}"
    summary = run(load(arguments), tmp_path / "run")
    assert "from_scores" in summary["plan"]
    model, before = checkpoints.load_model(tmp_path / "run"), split(checkpoints.load_model(ranker)).params
    assert model.pruner.num_tokens() == 4 and model.pruner.scorer.proposal.img_size == (32, 32)
    parts = split(model)
    kept = {**parts.params, **parts.rest}
    same = [np.array_equal(kept[f"pruner.scorer.proposal.{name}"], array) for name, array in before.items()]
    # What a classifier learns reaches the ranker only if it is let.
    assert not any(same) if learns else all(same)
    assert (set(parts.params) > {"pruner.scorer.proposal.head.kernel"}) == learns
    assert evaluate.assess(tmp_path / "run", tmp_path)["accuracy"] == summary["accuracy"]


def test_a_scorer_and_its_method_come_together(tmp_path):
    config = load("efficient.py:smoke")
    config.reduction.method = "topk"
    with pytest.raises(UserError, match="from_scores needs a scorer"):
        run(config, tmp_path / "method")
    with pytest.raises(UserError, match="ltrp reads a ranker: write ltrp:run=RUN"):
        run(load("efficient.py:smoke", scorer="ltrp"), tmp_path / "scorer")


def test_recall_is_that_of_patches_and_of_images():
    ranks = {"best": np.array([[0, 1, 2, 3], [3, 2, 1, 0]])}
    positive = [
        {"cat": np.array([True, True, False, False])},
        {"cat": np.array([True, False, False, False]), "person": np.array([False, False, False, True])},
    ]
    groups = class_groups(positive, "voc")
    assert groups == {
        ANY: ("cat", "person"), ALL: ("cat", "person"), LEARNED: ("cat",), UNLEARNED: ("person",),
        "cat": ("cat",), "person": ("person",),
    }  # fmt: skip
    rows = {(row.group, row.keep_rate): row for row in recall_table(ranks, positive, groups, (0.25, 0.5))}
    assert rows[ALL, 0.25].micro == 2 / 4 and rows[ALL, 0.25].macro.mean == (1 / 2 + 1 / 2) / 2
    assert rows[ALL, 0.5].micro == 3 / 4 and rows["cat", 0.5].macro.mean == (1 + 0) / 2
    assert rows["person", 0.25].images == 1 and rows["cat", 0.5].patches == 3
    assert rows["cat", 0.5].macro.std == pytest.approx(0.5)


def test_a_patch_of_two_classes_counts_once_in_their_union():
    ranks = {"best": np.array([[0, 1, 2, 3]])}
    positive = [{"cat": np.array([True, True, False, False]), "dog": np.array([True, False, True, False])}]
    found = recall_table(ranks, positive, class_groups(positive), (0.25, 0.5))
    rows = {(row.group, row.keep_rate): row for row in found}
    assert rows[ALL, 0.25].micro == 2 / 4 and rows[ANY, 0.25].micro == 1 / 3
    assert (rows[ALL, 0.25].patches, rows[ANY, 0.25].patches) == (4, 3)
    assert rows[ANY, 0.5].precision == rows[ALL, 0.5].precision == 1 and rows["dog", 0.5].precision == 1 / 2
    assert rows[ANY, 0.5].chance == 0.5 and rows[ANY, 0.5].chance_precision == 3 / 4


def test_objects_are_filtered_by_area():
    pixels = np.arange(64).reshape(8, 8)
    source = Pictures([Annotated(np.zeros((8, 8, 3), np.uint8), {"small": pixels < 4, "large": pixels < 32})])
    record = Preprocessing((8, 8), crop_pct=1.0)
    assert set(view(source, record, (2, 2)).positive[0]) == {"small", "large"}
    assert set(view(source, record, (2, 2), max_area=0.25).positive[0]) == {"small"}
    assert set(view(source, record, (2, 2), min_area=0.25).positive[0]) == {"large"}
    with pytest.raises(UserError, match="are not a range: use 0"):
        view(source, record, (2, 2), min_area=0.5, max_area=0.5)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.py")), ids=lambda path: path.name)
def test_every_ranker_is_built_abstractly(path):
    config = main.load_config(str(path))
    if "ranker" in config:
        ranker = nnx.eval_shape(lambda: build("ranker", config.ranker.to_dict(), rngs=nnx.Rngs(0)))
        mae = nnx.eval_shape(lambda: build("mim", config.mim.to_dict(), rngs=nnx.Rngs(0)))
        assert ranker.grid == mae.grid and jax.tree.leaves(nnx.state(ranker))


REFUSED = {
    "no labels": ({"label_model": ""}, "no model for the labels"),
    "no such loss": ({"loss": "listmle"}, "Did you mean 'list_mle'"),
    "no such option": ({"loss": "list_mle", "loss_options": {"top": 3}}, "It has: top_k, eps"),
    "a single patch": ({"labels": {"mask_ratio": 0.9}}, r"leaves 1 of 16 patches visible.* use 0\.875 or less"),
    "another grid": (
        {"ranker": {"name": "vit", "img_size": 32, "patch_size": 16, "embed_dim": 8, "depth": 1, "num_heads": 1}},
        "the autoencoder's img_size",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_sense_is_refused(what, weights, tmp_path):
    overrides, message = REFUSED[what]
    config = load("scenes.py:smoke", label_model=weights)
    for name in overrides:
        del config[name]
    config.update(overrides)
    if what == "no labels":
        del config["pretrain"]
    with pytest.raises(UserError, match=message):
        run(config, tmp_path / "run")


@pytest.mark.slow
def test_runs_of_another_kind_are_refused(trained, weights, tmp_path, caplog):
    workdir, _ = trained
    with pytest.raises(UserError, match="give a pre-training run"):
        run(load("scenes.py:smoke", label_model=str(workdir)), tmp_path / "run")
    config = load("scenes.py:smoke", label_model=weights)
    config.mim.norm_pix_loss = True
    with caplog.at_level(logging.WARNING):
        label_model(config, tmp_path)
    assert "trained on normalised pixels" in caplog.text and "reconstruction" not in caplog.text
    config.expects = "progressive"
    with caplog.at_level(logging.WARNING):
        label_model(config, tmp_path)
    assert "with full reconstruction, but progressive was expected" in caplog.text


@pytest.mark.slow
def test_scorers_that_cannot_be_read_are_refused(trained):
    workdir, _ = trained
    open_scorers = networks.open_scorers
    for scorers, message in (
        (("ltrp:run",), "write name=value"),
        (("ltrp:weights=x.pth",), "name the network"),
        (("ltpr",), "Did you mean 'ltrp'"),
        (("random:sed=1",), "Did you mean 'seed'"),
        ((f"ltrp:run={workdir}", "dino:model=vit_tiny_patch16_224"), "compare them in separate runs"),
    ):
        with pytest.raises(UserError, match=message):
            open_scorers(load("recall.py:smoke", scorers=scorers))


@pytest.mark.slow
def test_the_autoencoder_is_pre_trained_first(tmp_path):
    run(load("scenes.py:smoke"), tmp_path / "run")
    assert (tmp_path / "run" / "pretrain" / "checkpoints").is_dir()
    assert "Pre-training" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_a_resnet_is_trained_with_its_statistics(weights, tmp_path):
    ranker = {"name": "resnet", "img_size": 32, "patch_size": 8, "layers": (1, 1), "width": 4}
    config = load("scenes.py:smoke", label_model=weights, sparse=False, warm_start=False)
    config.ranker = ConfigDict(ranker)
    run(config, tmp_path / "run")
    loaded = checkpoints.load_model(tmp_path / "run")
    assert isinstance(loaded, ranking.ConvRanker) and np.abs(loaded.bn1.mean[...]).max() > 0
