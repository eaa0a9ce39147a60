"""What `patch_recall` writes: recall and precision by scorer and group of classes, against chance."""

import numpy as np
import pytest
from written_pages import read_csv

from jaxprune.commands.patch_recall import page
from jaxprune.evaluate.collectors import patch_recall

GRID, RATES = (2, 4), (0.5, 0.25)
KEPT_FIRST = {"ltrp": [0, 1, 2, 3, 4, 5, 6, 7], "random": [7, 5, 3, 1, 0, 2, 4, 6]}  # patches in order
CAT, DOG = [0, 1, 2, 3], [3, 7]
# A cat; a cat and a dog, which share patch 3; nothing; a dog.
PATCHES = [{"cat": CAT}, {"cat": CAT, "dog": DOG}, {}, {"dog": DOG}]


def mask(places):
    return np.isin(np.arange(8), places)


@pytest.fixture(scope="module")
def view():
    positive = [{name: mask(places) for name, places in image.items()} for image in PATCHES]
    regions = [
        {name: np.kron(touched.reshape(GRID), np.ones((4, 4), bool)) for name, touched in image.items()}
        for image in positive
    ]
    return patch_recall.View(np.full((4, 8, 16, 3), 128, np.uint8), regions, positive)


RANKS = {name: np.tile(np.argsort(order), (4, 1)) for name, order in KEPT_FIRST.items()}


@pytest.fixture(scope="module")
def rows(view):
    groups = patch_recall.class_groups(view.positive, ("dog",))
    return patch_recall.recall_table(RANKS, view.positive, groups, RATES)


def test_recall_is_counted_by_image_and_over_all_patches(rows, tmp_path):
    rows.write_csv(tmp_path / "patch_recall.csv")
    header, *lines = read_csv(tmp_path / "patch_recall.csv")
    assert header == [
        *("class", "scorer", "keep rate", "micro", "macro", "error", "precision", "chance", "chance precision"),
        *("images", "patches"),
    ]
    assert [line[:3] for line in lines[:4]] == [
        ["any class", "ltrp", "0.5"],
        ["any class", "ltrp", "0.25"],
        ["any class", "random", "0.5"],
        ["any class", "random", "0.25"],
    ]
    numbers = {tuple(line[:3]): [float(cell) for cell in line[3:]] for line in lines}
    # Of any class, LTRP keeps 4 of 4, 4 of 5 and 1 of 2 patches: 9 of 11. A patch with cat and dog counts once.
    shares = np.array([4 / 4, 4 / 5, 1 / 2])
    error = shares.std(ddof=1) / np.sqrt(3)
    precision = (4 / 4 + 4 / 4 + 1 / 4) / 3
    expected = [9 / 11, shares.mean(), error, precision, 0.5, (4 + 5 + 2) / 24, 3, 11]
    assert numbers["any class", "ltrp", "0.5"] == pytest.approx(expected)
    # Of all classes, the shared patch counts twice: 4 of 4, 5 of 6 and 1 of 2.
    assert numbers["all classes", "ltrp", "0.5"][0] == pytest.approx(10 / 12)
    # Random keeps 7, 5, 3 and 1, or 7 and 5: of the dogs, both patches or one of them.
    assert numbers["dog", "random", "0.5"][:3] == pytest.approx([1, 1, 0])
    assert numbers["dog", "random", "0.25"] == pytest.approx([0.5, 0.5, 0, 0.5, 0.25, 0.25, 2, 4])
    groups = ["any class", "all classes", "learned classes", "unseen classes", "cat", "dog"]
    assert list(dict.fromkeys(line[0] for line in lines)) == groups


@pytest.fixture(scope="module")
def part(part_of, rows, view):
    return part_of(lambda section: page.describe(section, rows, view, RANKS, GRID, 0.5))[0]


@pytest.mark.slow
def test_tables(part):
    *recall, by_class = part.tables
    assert [table.caption for table in recall] == [
        f"{group}: recall and precision at keep rate 0.5; recall at random is 50.0%. ± = the standard error of the "
        f"mean over {images} images."
        for group, images in {"Any class": 3, "All classes": 3, "Learned classes": 2, "Unseen classes": 2}.items()
    ]
    header = (
        "scorer | recall, mean of images | recall of all patches | precision | precision at random | images | patches"
    )
    assert [table.lines for table in recall] == [
        [
            header,
            "ltrp | 76.7% ± 14.5% | 81.8% | 75.0% | 45.8% | 3 | 11",
            "random | 70.0% ± 15.3% | 63.6% | 58.3% | 45.8% | 3 | 11",
        ],
        [
            header,
            "ltrp | 77.8% ± 14.7% | 83.3% | 75.0% | 45.8% | 3 | 12",
            "random | 72.2% ± 14.7% | 66.7% | 58.3% | 45.8% | 3 | 12",
        ],
        [
            header,
            "ltrp | 100.0% ± 0.0% | 100.0% | 100.0% | 50.0% | 2 | 8",
            "random | 50.0% ± 0.0% | 50.0% | 50.0% | 50.0% | 2 | 8",
        ],
        [
            header,
            "ltrp | 50.0% ± 0.0% | 50.0% | 25.0% | 25.0% | 2 | 4",
            "random | 100.0% ± 0.0% | 100.0% | 50.0% | 25.0% | 2 | 4",
        ],
    ]
    assert by_class.caption == (
        "Recall by class at keep rate 0.5, mean over the images with that class; at random 50.0%."
    )
    assert by_class.rows == [
        ["class", "images", "patches", "ltrp", "random"],
        ["cat", "2", "8", "100.0%", "50.0%"],
        ["dog", "2", "4", "50.0%", "100.0%"],
    ]


def test_findings_name_the_best_scorer_and_chance(part):
    captions = [figure.caption for figure in part.figures]
    recall = "recall of object patches at keep rate 0.5"
    bands = "Bands are ±2 standard errors of the mean over images; the dashed line is chance."
    assert captions[:5] == [
        f"Any class. None of the scorers stands out in {recall}: the intervals of ltrp (76.7%) and random (70.0%) "
        f"overlap; chance is 50.0% (3 images, 11 patches). {bands}",
        f"All classes. None of the scorers stands out in {recall}: the intervals of ltrp (77.8%) and random (72.2%) "
        f"overlap; chance is 50.0% (3 images, 12 patches). {bands}",
        f"Learned classes. The highest {recall} of the scorers is that of ltrp: 100.0% [100.0%, 100.0%]; chance is "
        f"50.0% (2 images, 8 patches). {bands}",
        f"Unseen classes. The highest {recall} of the scorers is that of random: 100.0% [100.0%, 100.0%]; chance is "
        f"50.0% (2 images, 4 patches). {bands}",
        "The patches that each scorer keeps at keep rate 0.5; dropped patches are grey with a cross. Objects are "
        "outlined in the first column.",
    ]
    cat, dog = part.figures[5:]
    assert "cat: 2 images, 8 patches" in cat.labels and "dog: 2 images, 4 patches" in dog.labels
    assert {"keep rate", "recall of object patches", "chance"} <= set(part.figures[0].labels)


def test_the_terminal_lists_the_best_scorer_first(rows):
    unseen = [row for row in rows if row.group == "unseen classes" and row.keep_rate == 0.5]
    assert page.summary_text(unseen).splitlines() == [
        "recall of unseen classes at keep rate 0.5 (random: 50.0%); ± = the standard error of the mean over 2 images",
        "  random  100.0% ± 0.0%   of all patches 100.0%, precision 50.0%",
        "  ltrp     50.0% ± 0.0%   of all patches 50.0%, precision 25.0%",
    ]
