"""What the collectors of a pass make of batches whose outputs are known."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from support import quickly

from jaxprune import models, reduction
from jaxprune.evaluate.collectors import predictions
from jaxprune.evaluate.collectors.agreement import BLANK, Agreement, Disagreements, Scores
from jaxprune.evaluate.collectors.hard_images import HardImages
from jaxprune.evaluate.collectors.held_out import SeveralLabels
from jaxprune.evaluate.collectors.kept import KeptCollector
from jaxprune.evaluate.collectors.observations import observe
from jaxprune.evaluate.collectors.patch_recall import Ranks
from jaxprune.evaluate.collectors.plans import Comparison, PlanResult
from jaxprune.evaluate.collectors.token_counts import CountCells, TokenCountCollector, distinct_tokens
from jaxprune.measures.intervals import Interval, difference, paired_difference, wilson_interval
from jaxprune.metrics import mean_average_precision
from jaxprune.reduction import DENSE

NAMES = ("ant", "bee", "cow")
LABELS = np.array([0, 0, 1, 1, 2, 2])
IMAGES = np.zeros((6, 8, 8, 3), np.uint8)


def collect(collector, outputs, size=4):
    """Shows a collector the six images in batches."""
    for start in range(0, 6, size):
        rows = slice(start, start + size)
        batch = {"image": IMAGES[rows], "label": LABELS[rows]}
        collector.update(batch, {name: part(rows) for name, part in outputs.items()})
    return collector.result()


def one_hot(classes):
    return np.eye(3, dtype=np.float32)[classes]


def test_predictions_by_class_and_wrong_ones_first():
    probabilities = 0.1 + 0.7 * one_hot([0, 1, 1, 1, 2, 0])
    collector = predictions.PredictionCollector(lambda outputs: outputs["model"], most=4)
    found = collect(collector, {"model": lambda rows: probabilities[rows]})
    np.testing.assert_array_equal(found.labels, LABELS)
    np.testing.assert_array_equal(found.predicted, [0, 1, 1, 1, 2, 0])
    np.testing.assert_allclose(found.confidences, 0.8, rtol=1e-6)
    # Two of each, the wrong ones first.
    assert [(example.label, int(example.probabilities.argmax())) for example in found.examples] == [
        *((0, 1), (2, 0)),
        *((0, 0), (1, 1)),
    ]
    matrix = predictions.confusions(found, 3)
    np.testing.assert_array_equal(matrix, [[1, 1, 0], [0, 2, 0], [1, 0, 1]])
    assert [row.accuracy.value for row in predictions.by_class(matrix, NAMES)] == [0.5, 1.0, 0.5]
    assert found.accuracy() == (pytest.approx(4 / 6), *wilson_interval(4, 6))


def test_examples_are_of_several_classes_where_images_come_class_by_class():
    collector = predictions.PredictionCollector(lambda outputs: outputs["model"], most=3)
    labels = np.repeat([0, 1, 2], 5)
    for start in range(0, 15, 4):  # images of class 2 are right, the others wrong
        batch = {"image": np.zeros((15, 8, 8, 3), np.uint8)[start : start + 4], "label": labels[start : start + 4]}
        collector.update(batch, {"model": one_hot(np.full(len(batch["label"]), 2))})
    assert [example.label for example in collector.result().examples] == [0, 1, 2]


def test_agreement_is_with_the_dense_network_and_not_with_the_labels():
    logits = {DENSE: one_hot([0, 1, 1, 1, 2, 0]), "plan": one_hot([0, 1, 1, 2, 0, 0])}
    outputs = {
        name: lambda rows, of_name=of_name: {"logits": of_name[rows], "probabilities": 0.5 * of_name[rows]}
        for name, of_name in logits.items()
    }
    scores = collect(Agreement(), outputs)
    assert scores[DENSE].agreement == 1 and scores[DENSE].accuracy.value == pytest.approx(4 / 6)
    assert scores["plan"].agreement == pytest.approx(4 / 6) and scores["plan"].accuracy.value == pytest.approx(2 / 6)
    right = [logits[name].argmax(-1) == LABELS for name in ("plan", DENSE)]
    assert scores["plan"].difference == paired_difference(*right) and scores[DENSE].difference == BLANK
    first, second = collect(Disagreements(), outputs)  # one a batch
    assert (first.name, first.label, first.dense, second.label, second.dense) == ("plan", 1, 1, 2, 2)
    assert first.probabilities.tolist() == [0, 0, 0.5]
    assert len(collect(Disagreements(most=1), outputs)) == 1


def test_hard_images_are_those_that_every_network_on_smaller_images_gets_wrong():
    predicted = {
        DENSE: [0, 0, 1, 1, 2, 2],
        "plan": [0, 1, 1, 0, 2, 0],
        "img_size=4": [0, 0, 0, 0, 0, 0],
        "img_size=2": [1, 1, 1, 0, 0, 0],
    }
    logits = {name: one_hot(np.array(classes)) for name, classes in predicted.items()}
    outputs = {name: lambda rows, of_name=of_name: {"logits": of_name[rows]} for name, of_name in logits.items()}
    scores = collect(HardImages(), outputs)  # images 3, 4 and 5
    assert {name: score.rescued.value for name, score in scores.items()} == pytest.approx(
        {DENSE: 1.0, "plan": 1 / 3, "img_size=4": 0.0, "img_size=2": 0.0}
    )
    assert scores["plan"].hard == 3 and scores["plan"].rescued == Interval(1 / 3, *wilson_interval(1, 3))
    assert collect(HardImages(), {name: outputs[name] for name in (DENSE, "plan")}) == {}


def test_what_is_kept_is_that_of_the_first_images_of_several_batches():
    assign = np.array([[0, -1, 2, 3]] * 6)
    outputs = {
        DENSE: lambda rows: {"assign": ()},
        "plan": lambda rows: {"assign": (assign[rows], assign[rows])},
    }
    grids = {DENSE: (), "plan": ((2, 2), (2, 2))}
    whole, parts = (collect(KeptCollector(grids, most=3), outputs, size)["plan"] for size in (4, 2))
    assert len(whole.images) == 3 and whole.grids == grids["plan"]
    np.testing.assert_array_equal(whole.assign, [assign[:3]] * 2)
    np.testing.assert_array_equal(whole.assign, parts.assign)
    np.testing.assert_array_equal(whole.images, parts.images)


def test_two_networks_are_paired_by_image_where_their_predictions_were_kept():
    """Each is right on four of six images, on the same ones or on others: only pairs can tell."""
    classes = {DENSE: [0, 0, 1, 1, 2, 2], "same": [0, 0, 1, 1, 0, 0], "others": [2, 2, 1, 1, 2, 2]}
    outputs = {name: lambda rows, of=of: {"logits": one_hot(of)[rows]} for name, of in classes.items()}
    scores = collect(Agreement(), outputs)
    half = scores["same"]
    assert half.accuracy == scores["others"].accuracy and half.over(half) == paired_difference(half.right, half.right)
    assert half.over(scores["others"]) == paired_difference(half.right, scores["others"].right)
    assert half.over(half).half < half.over(scores["others"]).half
    better = scores[DENSE].over(half)
    assert better == paired_difference(scores[DENSE].right, half.right) and better.value > 0
    apart = dataclasses.replace(half, right=None)
    assert apart == half and apart.over(half) == difference(half.accuracy, half.accuracy)


def test_rows_of_a_plan_whose_counts_are_bounds_are_those_that_are_there():
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 3, "num_heads": 2, "num_classes": 3}
    vit = models.create("vit", **sizes, kernel_init=nnx.initializers.normal(0.6), rngs=nnx.Rngs(0))
    networks = {DENSE: vit}
    for method in ("ats", "topk"):
        networks[method] = reduction.apply(vit, reduction.Plan(method, 0.5, (1, 2)), rngs=nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(0), (6, 16, 16, 3))
    _, aux = quickly(networks["ats"], lambda model, images: model(images))(images)
    there = [[len(set(ids[ids >= 0].tolist())) for ids in np.asarray(kept)] for kept in aux.kept]
    outputs = dict.fromkeys(networks, lambda rows: {"assign": tuple(np.asarray(step)[rows] for step in aux.assign)})
    found = collect(TokenCountCollector(networks), outputs)
    assert list(found) == ["ats"]
    np.testing.assert_allclose(found["ats"].means, np.mean(there, axis=1))
    np.testing.assert_allclose(found["ats"].rates, np.mean(there, axis=1) / 16)
    assert found["ats"].bounds == tuple(block.reducer.num_tokens() for block in networks["ats"].blocks[1:])
    assert all(rows < bound for rows, bound in zip(found["ats"].means, found["ats"].bounds, strict=True))
    assert found["ats"].cells().tokens.count(" of ") == 2
    scores = {name: Scores(Interval(1.0, 0.9, 1.0), 1.0) for name in networks}
    compared = Comparison(scores, {}, [], found, 4, {})
    assert compared.result("topk") == PlanResult(scores["topk"], CountCells("", ""))
    assert compared.result("ats").token_counts.rate.startswith(f"{found['ats'].rates[0]:.3f}, ")
    assert compared._replace(token_counts={}).result("ats") == PlanResult(scores["ats"])
    np.testing.assert_array_equal(distinct_tokens(np.array([[-1, -1], [0, 0], [0, 3], [-1, 2]])), [0, 1, 2, 1])


def test_ranks_are_places_and_the_first_of_equal_patches_wins():
    scores = np.array([[0.1, 0.9, 0.5, 0.5]] * 6)
    ranks = collect(Ranks("scores", ["norm"]), {"scores": lambda rows: {"norm": scores[rows]}})
    np.testing.assert_array_equal(ranks["norm"], [[3, 0, 1, 2]] * 6)


def test_images_of_several_classes_are_ranked_over_all_batches():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(6, 4)).astype(np.float32), rng.integers(0, 2, (6, 4))
    labels[:, 3] = 0
    collector = SeveralLabels("model")
    for rows in (slice(0, 4), slice(4, 6)):
        collector.update({"label": labels[rows]}, {"model": logits[rows]})
    found = collector.result()
    # As in `analyse`, a class that no image has does not count.
    assert found["map"] == mean_average_precision(logits[:, :3], labels[:, :3]) > 0
    assert found["loss"] == pytest.approx(float(optax.sigmoid_binary_cross_entropy(logits, labels).mean()))


def test_without_a_cls_token_the_patches_stand_for_a_layer_and_not_a_register():
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 1, "num_classes": 0}
    registers = {"class_token": False, "reg_tokens": 2, "global_pool": "avg", "fc_norm": False}
    model = models.create("vit", **sizes, **registers, rngs=nnx.Rngs(0))
    forward = observe(model, (0,), classify=False)
    found = jax.jit(forward.call)(forward.arrays, {"image": IMAGES})["layer_0"]
    normalised = (IMAGES / 255 - model.preprocessing.mean) / model.preprocessing.std
    rows = model.blocks[0].run(model.embed(jax.numpy.asarray(normalised, "float32")))
    np.testing.assert_allclose(found, rows[:, 2:].mean(1), atol=1e-5)
