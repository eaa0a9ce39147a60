"""What `robustness` writes: accuracy by kind, severity and corruption, and the mCE of ImageNet's classes."""

import numpy as np
import pytest
from written_pages import read_csv

from jaxprune.commands.robustness import page
from jaxprune.evaluate.collectors import robustness
from jaxprune.evaluate.collectors.agreement import Scores
from jaxprune.measures.intervals import Interval

GREY = np.full((16, 16, 3), 128, np.uint8)
PICTURES = dict.fromkeys(("", "gaussian_noise", "shot_noise", "fog"), GREY)
CLEAN = {
    "dense": Scores(Interval(0.9, 0.85, 0.94), 1.0),
    "topk": Scores(Interval(0.875, 0.82, 0.91), 0.9),
}
# By corruption: accuracy without it, and what every degree of severity costs.
FALLS = {
    "dense": {"gaussian_noise": (0.9, 0.1), "shot_noise": (0.7, 0.1), "fog": (0.8, 0.05)},
    "topk": {"gaussian_noise": (0.8, 0.05), "shot_noise": (0.8, 0.05), "fog": (0.8, 0.1)},
}


def scored(accuracy):
    return Scores(Interval(accuracy, accuracy, accuracy), 1.0)


def measured(severities=(1, 3, 5)):
    corrupted = {
        plan: {
            (name, severity): scored(start - fall * severity)
            for name, (start, fall) in falls.items()
            for severity in severities
        }
        for plan, falls in FALLS.items()
    }
    return robustness.Robustness(CLEAN, corrupted, images=200)


def test_accuracies_are_means_over_the_corruptions_of_a_kind(part_of):
    found = measured()
    (part,) = part_of(lambda section: page.describe(section, found, PICTURES, classes=10, imagenet=False))
    table, by_corruption = part.tables
    assert table.caption == (
        "Accuracy on 200 clean images (in brackets the 95 % interval (Wilson)), mean for each kind of corruption over "
        "its corruptions and severities, and mean over all corruptions."
    )
    # At the mean severity, 3: dense .6, .4 and .65; Top-K .65, .65 and .5.
    assert table.rows == [
        ["plan", "corrupted", "accuracy", "noise", "weather"],
        ["dense", "0.55", "0.9 (0.85–0.94)", "0.5", "0.65"],
        ["topk", "0.6", "0.875 (0.82–0.91)", "0.65", "0.5"],
    ]
    assert by_corruption.caption == "Accuracy by corruption and severity."
    assert by_corruption.rows == [
        ["corruption", "severity", "dense", "topk"],
        ["gaussian_noise", "1", "0.8", "0.75"],
        ["gaussian_noise", "3", "0.6", "0.65"],
        ["gaussian_noise", "5", "0.4", "0.55"],
        ["shot_noise", "1", "0.6", "0.75"],
        ["shot_noise", "3", "0.4", "0.65"],
        ["shot_noise", "5", "0.2", "0.55"],
        ["fog", "1", "0.75", "0.7"],
        ["fog", "3", "0.65", "0.5"],
        ["fog", "5", "0.55", "0.3"],
    ]


def test_the_fall_is_worded_and_drawn_from_severity_zero(part_of):
    found = measured()
    (part,) = part_of(lambda section: page.describe(section, found, PICTURES, classes=10, imagenet=False))
    lines, picture = part.figures
    assert lines.caption == (
        "dense falls from 90.0% to 55.0% on average over all corruptions and severities; chance is 10.0%."
    )
    assert {"severity (0: clean)", "accuracy", "dense", "topk", "chance"} <= set(lines.labels)
    assert picture.caption == "A held-out image under each corruption at severity 3."


def test_the_csv_files_have_all_digits(tmp_path):
    robustness.table(measured(), imagenet=False).write_csv(tmp_path / "robustness.csv")
    header, dense, topk = read_csv(tmp_path / "robustness.csv")
    assert header == ["plan", "accuracy", "low", "high", "noise", "weather", "corrupted"]
    assert dense[:4] == ["dense", "0.9", "0.85", "0.94"] and topk[0] == "topk"
    assert [float(cell) for cell in dense[4:]] == pytest.approx([0.5, 0.65, 0.55])
    assert [float(cell) for cell in topk[4:]] == pytest.approx([0.65, 0.5, 0.6])


def test_mce_is_relative_to_alexnet_and_lower_is_better(part_of):
    """A network with half of AlexNet's errors has 50 %, and one with as many 100 %."""
    severities = range(1, 6)
    of = lambda share: {
        (name, severity): scored(1 - share * error)
        for name, error in robustness.ALEXNET.items()
        for severity in severities
    }
    found = robustness.Robustness(CLEAN, {"dense": of(0.5), "topk": of(1.0)}, images=200)
    (part,) = part_of(lambda section: page.describe(section, found, PICTURES, classes=1000, imagenet=True))
    table = part.tables[0]
    assert table.caption.endswith(
        "mCE: error in percent of AlexNet's on ImageNet-C, mean over corruptions; lower is better."
    )
    assert table.header == ["plan", "mCE", "corrupted", "accuracy", "noise", "blur", "weather", "digital"]
    # AlexNet's errors, published with ImageNet-C: noise 88.6, 89.4, 92.3; blur 82.0, 82.6, 78.6, 79.8; weather 86.7,
    # 82.7, 81.9, 56.5; digital 85.3, 64.6, 71.8, 60.7 %.
    assert table.rows[1] == ["dense", "50", "0.606", "0.9 (0.85–0.94)", "0.549", "0.596", "0.615", "0.647"]
    assert table.rows[2] == ["topk", "100", "0.211", "0.875 (0.82–0.91)", "0.0988", "0.192", "0.231", "0.294"]
