"""What the collectors of a pass make of batches whose outputs are known."""

import numpy as np
import optax
import pytest

from jaxprune.analysis import predictions
from jaxprune.analysis.agreement import Agreement, Disagreements
from jaxprune.analysis.held_out import SeveralLabels
from jaxprune.analysis.kept import Kept
from jaxprune.analysis.patch_recall import Ranks
from jaxprune.bench.contestants import DENSE
from jaxprune.metrics import mean_average_precision, wilson_interval

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
    found = collect(predictions.Predicted("model", NAMES, shown=4), {"model": lambda rows: probabilities[rows]})
    np.testing.assert_array_equal(found.labels, LABELS)
    np.testing.assert_array_equal(found.predictions, [0, 1, 1, 1, 2, 0])
    np.testing.assert_allclose(found.confidences, 0.8, rtol=1e-6)
    assert len(found.cards) == 4
    matrix = predictions.confusions(found, 3)
    np.testing.assert_array_equal(matrix, [[1, 1, 0], [0, 2, 0], [1, 0, 1]])
    assert [row["accuracy"] for row in predictions.by_class(matrix, NAMES)] == [0.5, 1.0, 0.5]
    summary = predictions.summarise(found)
    assert summary["accuracy"] == pytest.approx(4 / 6) and summary["images"] == 6
    assert (summary["accuracy_low"], summary["accuracy_high"]) == wilson_interval(4, 6)


def test_agreement_is_with_the_dense_network_and_not_with_the_labels():
    logits = {DENSE: one_hot([0, 1, 1, 1, 2, 0]), "plan": one_hot([0, 1, 1, 2, 0, 0])}
    outputs = {name: lambda rows, own=own: {"logits": own[rows]} for name, own in logits.items()}
    scores = collect(Agreement(), outputs)
    assert scores[DENSE]["agreement"] == 1 and scores[DENSE]["accuracy"] == pytest.approx(4 / 6)
    assert scores["plan"]["agreement"] == pytest.approx(4 / 6) and scores["plan"]["accuracy"] == pytest.approx(2 / 6)
    assert len(collect(Disagreements(NAMES), outputs)) == 2  # one a batch
    assert len(collect(Disagreements(NAMES, shown=1), outputs)) == 1


def test_what_is_kept_is_drawn_of_the_first_images_of_several_batches():
    assign = np.array([[0, -1, 2, 3]] * 6)
    outputs = {
        DENSE: lambda rows: {"assign": ()},
        "plan": lambda rows: {"assign": (assign[rows], assign[rows])},
    }
    whole, parts = (collect(Kept({DENSE: (2, 2), "plan": (2, 2)}, shown=3), outputs, size) for size in (4, 2))
    assert list(whole) == ["plan"]
    np.testing.assert_array_equal(whole["plan"], parts["plan"])


def test_ranks_are_places_and_the_first_of_equal_patches_wins():
    scores = np.array([[0.1, 0.9, 0.5, 0.5]] * 6)
    ranks = collect(Ranks("scores", ["norm"]), {"scores": lambda rows: {"norm": scores[rows]}})
    np.testing.assert_array_equal(ranks["norm"], [[3, 0, 1, 2]] * 6)


def test_images_of_several_classes_are_ranked_over_all_batches():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(6, 3)).astype(np.float32), rng.integers(0, 2, (6, 3))
    collector = SeveralLabels("model")
    for rows in (slice(0, 4), slice(4, 6)):
        collector.update({"label": labels[rows]}, {"model": logits[rows]})
    found = collector.result()
    assert found["map"] == mean_average_precision(logits, labels)
    assert found["loss"] == pytest.approx(float(optax.sigmoid_binary_cross_entropy(logits, labels).mean()))
