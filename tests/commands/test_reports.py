"""Values in the sections that runs add to their reports."""

import numpy as np
import pytest

from jaxprune.commands.evaluate import page
from jaxprune.commands.finetune.page import _tiles
from jaxprune.commands.shared import reporting
from jaxprune.evaluate.collectors import predictions
from jaxprune.preprocessing import Preprocessing
from jaxprune.report import Report
from jaxprune.report.scorer_names import about_images, about_scorers, short_names


def test_mean_average_precision_is_shown_in_percent():
    value, note = _tiles({"map": 0.4321, "held_out": 50})["held-out mAP"]
    assert value == "43.2%" and "50 images" in note


def test_accuracy_tiles_say_what_the_interval_is():
    (tile,) = reporting.accuracy_tiles(reporting.with_interval({"accuracy": 0.5, "held_out": 100})).values()
    assert tile == ("50.0%", "40.4% to 59.6%: 95 % interval (Wilson) over 100 images")


@pytest.mark.parametrize("shares", [True, False])
def test_captions_of_curves_state_the_last_values(shares):
    records = [{"split": "eval", "step": step, "accuracy": 0.1 * step} for step in (1, 5)]
    section = Report("r").section("s")
    chance = 0.1 if shares else None
    reporting.curves(section, records, {"eval/accuracy": "held-out"}, "accuracy", shares=shares, chance=chance)
    page = section.render()
    assert ("held-out 50.0%; chance 10.0%" if shares else "held-out 0.5.") in page


def test_classes_have_intervals_and_the_matrix_a_finding():
    matrix = np.array([[3, 1], [0, 4]])
    first, _ = predictions.by_class(matrix, ["cat", "dog"])
    assert first.accuracy.value == 0.75 and first.accuracy.low < 0.75 < first.accuracy.high and first.images == 4
    text = page.confusion_text(matrix, ["cat", "dog"])
    assert (
        "cat predicted as dog, 1 of 4 images; of their 95 % intervals, that of no other confusion overlaps it" in text
    )
    assert page.confusion_text(np.eye(2, dtype=int), ["cat", "dog"]) == "All images are classified correctly."


def test_captions_name_networks_weights_class_and_crop():
    texts = ["papr", "cam:model=resnet50,weights=dir/r.pth", "grad_cam:run=runs/a", "dino", "random"]
    text = about_scorers(texts, proposal="efficientnet_lite0", weights="", host="runs/vit")
    assert "papr reads efficientnet_lite0 (its published ImageNet weights)." in text
    assert "cam reads resnet50 (weights of `dir/r.pth`)." in text and "dino reads `runs/vit`." in text
    assert "cam and grad_cam explain the class that their own network predicts" in text and "random" not in text
    assert about_images(Preprocessing((32, 48))).endswith("a centre crop of 87.5% of the shorter side.")
    assert "without a crop" in about_images(Preprocessing((32, 48), crop="none"))


def test_scorers_of_one_name_differ_by_their_options():
    names = short_names(["papr", "papr:with_fc=true", "ltrp:run=a/b", "cam:run=x/y", "cam:run=z/y"])
    assert list(names.values()) == ["papr", "papr:with_fc=true", "ltrp", "cam:run=x/y", "cam:run=z/y"]
