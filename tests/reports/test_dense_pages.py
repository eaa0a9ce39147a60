"""What `segment` and `detect` write of networks under plans: scores, speed and verdict first, no winner by chance."""

import csv
import dataclasses

import pytest

from jaxprune.bench.costs import Promise
from jaxprune.bench.timing import OverRounds
from jaxprune.commands.detect import page as detect
from jaxprune.commands.segment import page as segment
from jaxprune.commands.shared import dense_page
from jaxprune.measures.intervals import NO_INTERVAL, Interval
from jaxprune.report.table import Table

FAST = Promise(OverRounds(1.5, 1.25, 1.75), 2.0, 0.75, "75% of the promise")
SAME = Promise(OverRounds(1.0, 1.0, 1.0), 1.0, 1.0, "baseline")
LOST = Interval(-0.02, -0.03, -0.01)
SEGMENTERS = (
    segment.NetworkRow("dense", 4, Interval(0.5, 0.48, 0.52), NO_INTERVAL, Interval(0.8, 0.79, 0.81), 1, 20, SAME),
    segment.NetworkRow("topk", 2, Interval(0.48, 0.46, 0.5), LOST, Interval(0.78, 0.77, 0.79), 0.9, 30, FAST),
)
DETECTORS = (
    detect.NetworkRow("dense", 4, Interval(0.5, 0.48, 0.52), NO_INTERVAL, 0.4, 20, SAME, Interval(0.9, 0.85, 0.95)),
    detect.NetworkRow("topk", 2, Interval(0.48, 0.46, 0.5), LOST, 0.39, 30, FAST, Interval(0.8, 0.7, 0.9)),
)


@pytest.mark.parametrize(
    ("rows", "field", "score", "columns", "own"),
    [
        (SEGMENTERS, "mean_iou", "mIoU", ("agreement", "pixel_accuracy"), ["agreement", "aAcc"]),
        (DETECTORS, "box", "box AP", ("ap50", "mask"), ["box AP50", "mask AP"]),
    ],
)
def test_scores_speed_and_verdict_come_first(part_of, tmp_path, rows, field, score, columns, own):
    options = {"field": field, "score": score, "columns": columns, "caption": "Each."}
    (part,) = part_of(lambda section: dense_page.add_comparison(section, tmp_path, Table(rows), **options))
    (table,), (plot,) = part.tables, part.figures
    last = ["GFLOPs", "images/s", "FLOP-implied", "measured ÷ implied"]
    assert table.header == ["plan", score, "difference", "speed-up", "verdict", *own, *last]
    assert table.rows[1][:5] == ["dense", "0.5 (0.48–0.52)", "–", "1 (1–1)", "baseline"]
    assert table.rows[2][2:5] == ["-0.02 (-0.03 to -0.01)", "1.5 (1.25–1.75) *", "75% of the promise"]
    assert plot.caption.startswith(
        f"None of the networks stands out in {score}: the intervals of dense (50.0%) and topk (48.0%) overlap."
    )
    with (tmp_path / "plans.csv").open(encoding="utf-8") as file:
        assert [row["plan"] for row in csv.DictReader(file)] == ["dense", "topk"]


def test_without_timing_there_are_no_columns_of_speed(part_of, tmp_path):
    rows = Table(dataclasses.replace(row, images_per_second=None, promise=None) for row in DETECTORS)
    options = {"field": "box", "score": "box AP", "columns": ("mask",), "caption": "Each."}
    (part,) = part_of(lambda section: dense_page.add_comparison(section, tmp_path, rows, **options))
    assert part.tables[0].header == ["plan", "box AP", "difference", "mask AP", "GFLOPs"]
