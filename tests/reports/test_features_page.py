"""What `features` writes: its files, classification by features, and the nearest training images."""

from types import SimpleNamespace

import numpy as np
import pytest
from written_pages import read_csv

from jaxprune.commands.features import page
from jaxprune.data.scenes import Scenes
from jaxprune.evaluate import feature_probe
from jaxprune.evaluate.feature_formats import Shard, encode
from jaxprune.measures.intervals import Interval
from jaxprune.preprocessing import Preprocessing
from jaxprune.report.table import Table

RECORD = Preprocessing((32, 32))
# 30, 35, 25 and 40 of 50 held-out images right, with Wilson's intervals.
PROBED = feature_probe.Probed(
    rows=Table(
        feature_probe.ProbeRow(feature, classifier, Interval(right / 50, low, high), 50, 200, 0.1)
        for feature, classifier, right, low, high in (
            ("cls", "20 nearest neighbours", 30, 0.4618, 0.7239),
            ("cls", "linear", 35, 0.5625, 0.8090),
            ("pooled", "20 nearest neighbours", 25, 0.3664, 0.6336),
            ("pooled", "linear", 40, 0.6696, 0.8876),
        )
    ),
    predictions={},
    heads={},
)


def test_classification_is_listed_with_intervals_and_chance(part_of):
    (part,) = part_of(lambda section: page.describe_probe(section, PROBED))
    (plot,), (table,) = part.figures, part.tables
    assert part.tiles == {}
    assert part.texts == [
        "None of the features and classifiers stands out in accuracy: the intervals of pooled, linear (80.0%), cls, "
        "linear (70.0%) and cls, 20 nearest neighbours (60.0%) overlap; chance is 10.0%."
    ]
    assert plot.caption == "Whiskers: ± = half the 95 % interval (Wilson) over 50 images."
    assert "held-out accuracy" in plot.labels and {"60.0%", "70.0%", "50.0%", "80.0%"} <= set(plot.labels)
    assert table.caption == (
        "Held-out images classified by the features of training images: accuracy, in brackets the 95 % interval "
        "(Wilson)."
    )
    assert table.rows == [
        ["features", "classifier", "accuracy", "images", "training images", "chance"],
        ["cls", "20 nearest neighbours", "60.0% (46.2%–72.4%)", "50", "200", "10.0%"],
        ["cls", "linear", "70.0% (56.2%–80.9%)", "50", "200", "10.0%"],
        ["pooled", "20 nearest neighbours", "50.0% (36.6%–63.4%)", "50", "200", "10.0%"],
        ["pooled", "linear", "80.0% (67.0%–88.8%)", "50", "200", "10.0%"],
    ]


def test_two_numbers_stand_in_the_table_alone(part_of):
    two = PROBED._replace(rows=Table(list(PROBED.rows)[:2]))
    (part,) = part_of(lambda section: page.describe_probe(section, two))
    assert (part.tiles, part.figures, len(part.tables)) == ({}, [], 1)


def test_the_summary_has_every_accuracy_with_its_ends():
    summary = feature_probe.summarise(PROBED.rows)
    assert list(summary)[:3] == [f"cls, 20 nearest neighbours{end}" for end in ("", ", low", ", high")]
    assert (summary["pooled, linear"], summary["pooled, linear, low"], summary["pooled, linear, high"]) == (
        0.8,
        0.6696,
        0.8876,
    )
    assert (summary["held-out images"], summary["chance"]) == (50, 0.1)


@pytest.fixture
def written(tmp_path):
    """Features of six training images in two files, and of four held-out ones, of which one cannot be read."""
    paths = {}
    for split, parts in {"train": (4, 2), "eval": (3,)}.items():
        for number, count in enumerate(parts):
            index = np.arange(count, dtype=np.int32) + 4 * number
            values = {
                "cls": np.zeros((count, 8), np.float32),
                "patches": np.zeros((count, 4, 5, 8), np.float16),
            }
            shard = Shard(tuple(map(str, index)), index, index % 2, values)
            path = tmp_path / f"{split}{number}.npz"
            path.write_bytes(encode(shard, "npz"))
            paths.setdefault(split, []).append(path)
    train, held_out = (Scenes(split=name, num_examples=count) for name, count in (("train", 6), ("test", 4)))
    held_out.broken[f"{held_out.name}[3]"] = "cut off"
    return paths, {"train": train, "eval": held_out}


def test_files_are_described_by_their_contents(part_of, written):
    rows = page.contents(*written)
    plan = SimpleNamespace(text="topk@1:keep_rate=0.5")
    (part,) = part_of(lambda section: page.describe_files(section, rows, RECORD, plan))
    assert part.texts == [
        "Tokens are reduced by topk@1:keep_rate=0.5; maps are dense again, with zeros for dropped patches. Images are "
        "32 × 32 pixels: a centre crop of 87.5% of the shorter side. In the files, cls is the CLS token after the "
        "final norm; patches is the map of patches after the final norm."
    ]
    (table,) = part.tables
    assert table.caption == "Contents of the files in features/; shapes are per image."
    assert table.rows == [
        ["split", "images", "files", "cls", "patches"],
        ["train", "6", "2", "8, float32", "4 × 5 × 8, float16"],
        ["eval", "3", "1", "8, float32", "4 × 5 × 8, float16"],
    ]


def test_nearest_images_are_drawn_beside_right_and_wrong_ones(part_of):
    """Two classes along two axes; of eight held-out images the best classifier errs on the last two."""
    sources = tuple(Scenes(split=split, num_examples=10, image_size=32) for split in ("train", "test"))
    unit = np.eye(2, dtype=np.float32)
    labels = np.array([0, 1] * 5)
    train = feature_probe.Labelled(np.arange(10), labels, {"cls": unit[labels]})
    truth = np.array([0, 1, 0, 1, 0, 1, 0, 1])
    held_out = feature_probe.Labelled(np.arange(8), truth, {"cls": unit[truth]})
    best, worse = np.array([0, 1, 0, 1, 0, 1, 1, 0]), np.array([1, 0, 1, 0, 1, 0, 0, 1])
    rows = [
        feature_probe.ProbeRow("cls", classifier, Interval(right, 0.0, 1.0), 8, 10, 0.5)
        for classifier, right in (("10 nearest neighbours", 0.25), ("linear", 0.75))
    ]
    predictions = {"cls, 10 nearest neighbours": worse, "cls, linear": best}
    probed = feature_probe.Probed(Table(rows), predictions, {})
    pictures = []

    def fill(section):
        pictures.append(page.nearest_images(section, sources, (train, held_out), probed, RECORD))

    (part,) = part_of(fill)
    assert part.figures[0].caption == (
        "Left, held-out images; to the right of each the training images with the nearest cls features by cosine, "
        "nearest first. Green: the classifier (cls, linear) is right, or the neighbour has the image's class; "
        "orange: not. As many right as wrong images are shown; of all 8, 75.0% are right."
    )
    assert pictures[0].ndim == 3


def test_a_probe_counts_the_held_out_images_that_are_right(tmp_path):
    """Classes on two sides of a line; of five held-out images one lies on the wrong side."""
    side = lambda *values: np.array([[value, 1.0] for value in values], np.float32)
    train = feature_probe.Labelled(np.arange(6), np.array([0, 0, 0, 1, 1, 1]), {"cls": side(-3, -2, -1, 1, 2, 3)})
    held_out = feature_probe.Labelled(np.arange(5), np.array([0, 0, 1, 1, 1]), {"cls": side(-2, -1, -2, 1, 3)})
    found = feature_probe.probe(train, held_out, 2, neighbours=3)
    found.rows.write_csv(tmp_path / "features.csv")
    header, neighbours, linear = read_csv(tmp_path / "features.csv")
    assert header == ["features", "classifier", "accuracy", "low", "high", "images", "training images", "chance"]
    for row, name in ((neighbours, "3 nearest neighbours"), (linear, "linear")):
        assert row[:3] == ["cls", name, "0.8"] and row[5:] == ["5", "6", "0.5"]
        assert [float(cell) for cell in row[3:5]] == pytest.approx([0.3755, 0.9638], abs=1e-4)
