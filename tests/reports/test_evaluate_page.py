"""What `evaluate` writes: accuracy by class, the most frequent confusion, and the network under plans."""

from importlib import import_module
from typing import NamedTuple

import numpy as np
import pytest

from jaxprune.commands.evaluate import page
from jaxprune.commands.shared import plans_page
from jaxprune.evaluate.collectors import plans, predictions
from jaxprune.evaluate.collectors.agreement import Agreement, Disagreement
from jaxprune.evaluate.collectors.kept import KeptPatches
from jaxprune.evaluate.collectors.token_counts import TokenCounts

# The package has a function of the same name.
evaluate = import_module("jaxprune.commands.evaluate.run")
CLASSES = ("ant", "bee", "cow")
GREY = np.full((16, 16, 3), 128, np.uint8)
# Of four ants one is taken for a bee, of four bees two for cows; the cows are right.
PREDICTED = predictions.Predictions(
    labels=np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2]),
    predicted=np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 2]),
    confidences=np.full(10, 0.9),
    examples=[predictions.Example(GREY, 0, np.array([0.2, 0.7, 0.1]))] * 2,
)


class Costed(NamedTuple):
    """A contestant of known cost."""

    cost: float

    def gflops(self):
        return self.cost


def compared():
    """Five images in batches of three and two: dense is right on four, Top-K on two, ATS on three."""
    labels, agreement = np.array([0, 0, 1, 1, 0]), Agreement()
    answers = {"dense": [0, 0, 1, 1, 1], "topk": [0, 1, 1, 0, 1], "ats": [1, 0, 1, 0, 0]}
    for part in (slice(0, 3), slice(3, 5)):
        outputs = {name: {"logits": np.eye(2)[answer][part]} for name, answer in answers.items()}
        agreement.update({"label": labels[part]}, outputs)
    counts = {"ats": TokenCounts(means=(57.125, 30.4), bounds=(98, 49), rates=(0.29145, 0.1551))}
    kept = {"topk": KeptPatches(GREY[None], (np.array([[0, -1, 2, 3]]),), ((2, 2),))}
    disagreement = Disagreement("topk", GREY, 1, np.array([0.6, 0.4]), dense=1)
    return plans.Comparison(agreement.result(), kept, [disagreement] * 2, counts, 5, {})


def test_classes_that_are_not_predicted_are_left_out(part_of):
    names = ("ape", *CLASSES, "dog")
    moved = PREDICTED._replace(labels=PREDICTED.labels + 1, predicted=PREDICTED.predicted + 1)
    (part,) = part_of(lambda section: page.describe(section, moved, names, allowed=(1, 2, 3)))
    (same,) = part_of(lambda section: page.describe(section, PREDICTED, CLASSES))
    assert part.tiles == same.tiles and part.tables == same.tables


def test_accuracy_has_its_interval_number_and_chance(part_of):
    (part,) = part_of(lambda section: page.describe(section, PREDICTED, CLASSES))
    # 7 of 10; Wilson's interval is .397 to .892.
    assert part.tiles == {
        "accuracy": ("70.0%", "39.7% to 89.2%: 95 % interval (Wilson) over 10 images"),
        "chance": ("33.3%", ""),
    }
    summary = evaluate._summary(evaluate._Tested(None, None, PREDICTED, compared()))
    assert summary["accuracy"] == 0.7 and summary["images"] == 10
    assert (summary["accuracy_low"], summary["accuracy_high"]) == pytest.approx((0.3968, 0.8922), abs=1e-4)


def test_classes_are_listed_with_their_own_intervals(part_of):
    (part,) = part_of(lambda section: page.describe(section, PREDICTED, CLASSES))
    (table,) = part.tables
    assert table.caption == "By class: accuracy, in brackets the 95 % interval (Wilson) over the class's images."
    assert table.rows == [
        ["class", "accuracy", "images"],
        ["ant", "75.0% (30.1%–95.4%)", "4"],
        ["bee", "50.0% (15.0%–85.0%)", "4"],
        ["cow", "100.0% (34.2%–100.0%)", "2"],
    ]


def test_the_most_frequent_confusion_is_named(part_of):
    (part,) = part_of(lambda section: page.describe(section, PREDICTED, CLASSES))
    matrix, *cards = part.figures
    assert matrix.caption == (
        "Counted most often: bee predicted as cow, 2 of 4 images; of their 95 % intervals, that of 1 other confusion "
        "overlaps it, so another may be the most frequent. A row is a true class; colours are shares of its images."
    )
    # Rows are true classes: ants 3 and 1, bees 2 and 2, cows 2.
    assert matrix.labels == ["ant", "bee", "cow", "predicted", "ant", "bee", "cow", "true", "3", "1", "2", "2", "2"]
    assert part.texts == ["Predictions for some of the images, wrong ones first:"] and len(cards) == 2


def test_plans_are_listed_with_cost_accuracy_and_agreement(part_of):
    found = compared()
    rows = found.table({"dense": Costed(4.25), "topk": Costed(2.5), "ats": Costed(2.0)})
    (part,) = part_of(lambda section: plans_page.describe(section, rows, found, class_names=CLASSES[:2]))
    (table,) = part.tables
    assert table.caption == (
        "Accuracy (in brackets the 95 % interval (Wilson); the difference from dense is paired by image (95 %, Agresti "
        "and Min)) and agreement with the dense network, n = 5 images. rows: mean number of rows in use after each "
        "step, of those that the plan allows and GFLOPs count; rate: the former as a share of the patches."
    )
    counts = "57.12 of 98, 30.4 of 49"
    assert table.rows == [
        ["plan", "accuracy", "accuracy − dense", "agreement", "GFLOPs", "rows", "rate"],
        ["dense", "80.0% (37.6%–96.4%)", "–", "100.0%", "4.25", "", ""],
        ["topk", "40.0% (11.8%–76.9%)", "-40.0% (-72.2% to +15.1%)", "60.0%", "2.5", "", ""],
        ["ats", "60.0% (23.1%–88.2%)", "-20.0% (-69.3% to +40.7%)", "40.0%", "2", counts, "0.291, 0.155"],
    ]
    plot, *pictures = part.figures
    assert plot.caption == (
        "None of the plans stands out in accuracy: the intervals of ats (60.0%) and topk (40.0%) overlap; the cheapest "
        "of them is ats, with 2 GFLOPs. dense has 80.0% [37.6%, 96.4%] with 4.25; ats minus dense: -20.0% [-69.3%, "
        "+40.7%], paired by image. The grey line joins the highest values measured at each cost."
    )
    assert {"GFLOPs", "accuracy", "dense", "topk", "ats", "chance (0.5)"} <= set(plot.labels)
    assert pictures[0].caption == (
        "topk: the image, then the patches left after each step of the plan. Dropped patches are grey with a cross; "
        "patches merged into one token have a border of one colour."
    )
    assert part.texts == ["Images for which a plan and the dense network predict different classes:"]
    assert len(pictures) == 1 + 2


def test_without_variable_counts_there_are_no_columns_for_them(part_of):
    found = compared()._replace(token_counts={}, disagreements=[])
    rows = found.table({"dense": Costed(4.25), "topk": Costed(2.5)})
    (part,) = part_of(lambda section: plans_page.describe(section, rows, found, class_names=CLASSES[:2]))
    (table,) = part.tables
    assert table.header == ["plan", "accuracy", "accuracy − dense", "agreement", "GFLOPs"]
    assert table.caption.endswith("and agreement with the dense network, n = 5 images.") and part.texts == []
