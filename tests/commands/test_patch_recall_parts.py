"""Plots and sentences about the patches of objects that scorers keep."""

from importlib import import_module

import numpy as np
import pytest

from jaxprune import commands
from jaxprune.commands import patch_recall
from jaxprune.commands.patch_recall.page import bars, curves, definition, finding, summary_text
from jaxprune.evaluate.collectors.patch_recall import ANY, class_groups, recall_table

RANKS = {"papr:with_fc=true": np.array([[0, 1, 2, 3]] * 3), "norm": np.array([[3, 2, 1, 0]] * 3)}
CAT = [{"cat": np.array(own, bool)} for own in ([1, 1, 0, 0], [1, 0, 0, 1], [1, 0, 0, 0])]
ROWS = recall_table(RANKS, CAT, class_groups(CAT), (0.25, 0.5))
AT = [row for row in ROWS if row.group == ANY and row.keep_rate == 0.5]


def test_intervals_of_recall_end_at_zero_and_at_one():
    (axes,) = bars(AT, ANY).axes
    (interval,) = axes.containers[1][2]
    ends = np.concatenate([segment[:, 0] for segment in interval.get_segments()])
    assert ends.min() >= 0 and ends.max() <= 1 and axes.get_xlim() == (0, pytest.approx(1, abs=0.02))
    assert axes.get_title(loc="left") == "any class: 3 images, 5 patches"
    (axes,) = curves(ROWS, ANY).axes
    for band in axes.collections:
        drawn = band.get_paths()[0].vertices[:, 1]
        assert drawn.min() >= 0 and drawn.max() <= 1


def test_chance_is_drawn_and_named():
    (axes,) = curves(ROWS, ANY).axes
    chance = next(line for line in axes.lines if line.get_label() == "chance")
    np.testing.assert_allclose(chance.get_ydata(), [0.25, 0.5])
    (line,) = (line for line in bars(AT, ANY).axes[0].lines if "chance" in str(line.get_label()))
    assert line.get_xdata()[0] == 0.5
    assert finding(AT) == (
        "The highest recall of object patches at keep rate 0.5 of the scorers is that of papr: 83.3% "
        "[50.7%, 100.0%]; chance is 50.0%"
    )


def test_all_built_in_scenes_are_those_of_the_default(monkeypatch, tmp_path):
    class Asked(Exception):
        pass

    def asked(source, **options):
        raise Asked(source, options)

    monkeypatch.setattr(import_module("jaxprune.commands.patch_recall.run"), "open_annotations", asked)
    with pytest.raises(Asked) as caught:
        commands.find("patch_recall")(patch_recall.defaults(num_images=0, scorers=("random",)), tmp_path)
    assert caught.value.args == ("scenes", {"image_size": 224, "seed": 0})


def test_what_is_counted_is_stated():
    assert "any class" in definition() and "area" not in definition() and "1.0% to 20.0%" in definition(0.01, 0.2)
    assert "± = the standard error of the mean over 3 images" in summary_text(AT)
