"""What `score` writes: the share of its patches that the first scorer also keeps, and the pictures left out."""

import numpy as np
import pytest

from jaxprune import scoring
from jaxprune.commands.score import page
from jaxprune.data.pictures import Pictures
from jaxprune.evaluate.score_files import Part, write_part
from jaxprune.open import ScorerSet
from jaxprune.preprocessing import Preprocessing

GRID, NAMES = (2, 4), ("a.png", "b.png", "broken.png", "c.png")
FIRST, SECOND = "centre", "random:seed=3"
RISING = np.arange(8.0)
# The second scorer orders the patches of a.png as the first does, of b.png the other way round, and of c.png it puts
# the best one last. Of 8 patches, half and a quarter are kept: in common 4 and 2; 0 and 0; 3 and 1.
SCORES = {
    FIRST: [RISING, RISING, RISING * np.nan, RISING],
    SECOND: [RISING, -RISING, RISING * np.nan, (RISING + 1) % 8],
}


@pytest.fixture(scope="module")
def opened():
    scorers = {text: scoring.create("centre", grid=GRID) for text in SCORES}
    return ScorerSet(scorers, Preprocessing((16, 32)), GRID, num_prefix_tokens=1)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Files of two pictures each."""
    folder, broken = tmp_path_factory.mktemp("scores"), ("", "", "no picture", "")
    files = []
    for part in (slice(0, 2), slice(2, 4)):
        files.append(folder / f"{part.start:08d}.npz")
        scores = {text: np.array(values)[part] for text, values in SCORES.items()}
        write_part(files[-1], Part(NAMES[part], broken[part], scores), GRID)
    return files


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, opened, paths):
    """The folder of drawings, and what was drawn of the first two pictures that can be read."""
    folder = tmp_path_factory.mktemp("pictures")
    pictures = Pictures(NAMES, lambda index: np.full((16, 32, 3), 20 * index, np.uint8))
    return folder, page.draw(folder, pictures, opened, paths, (0.5, 0.25), limit=3)


def test_agreement_is_a_mean_over_the_pictures_that_can_be_read(opened, paths):
    assert page.agreement(paths, opened, (0.5, 0.25)).flat() == [
        {"scorer": FIRST, "at 50%": 1.0, "at 25%": 1.0},
        {"scorer": SECOND, "at 50%": pytest.approx((4 + 0 + 3) / 12), "at 25%": pytest.approx((2 + 0 + 1) / 6)},
    ]


def test_the_page_lists_agreement_and_unreadable_pictures(part_of, opened, paths, drawn):
    shares = page.agreement(paths, opened, (0.5, 0.25))
    fill = lambda section: page.describe(
        section, opened, drawn[1], shares, {"broken.png": "no picture"}, 0.5, "Neither reads a network."
    )
    (part,) = part_of(fill)
    assert part.texts == [
        "The patches that each scorer keeps of images of 16 × 32 pixels in 2 × 4 patches; the others are grey. Neither "
        "reads a network. Images are 16 × 32 pixels: a centre crop of 87.5% of the shorter side."
    ]
    shared, unreadable = part.tables
    assert shared.caption == "Share of its patches that centre also keeps, over all images."
    assert shared.rows == [
        ["scorer", "at 50%", "at 25%"],
        [FIRST, "100.0%", "100.0%"],
        [SECOND, "58.3%", "50.0%"],
    ]
    assert part.notes == ["Unreadable and left out: 1."]
    assert unreadable.rows == [["file", "why"], ["broken.png", "no picture"]]


def test_drawings_have_the_numbers_of_their_pictures(drawn):
    folder, scored = drawn
    assert sorted(path.name for path in folder.iterdir()) == ["000000_a.png", "000001_b.png", "000003_c.png"]
    assert [image.caption for image in scored] == ["a.png", "b.png", "c.png"]
    np.testing.assert_array_equal(scored[2].scores[SECOND], (RISING + 1) % 8)
    assert scored[2].image.mean() == 60


def test_drawings_are_spread_over_the_folder(tmp_path, opened, paths):
    pictures = Pictures(NAMES, lambda index: np.zeros((16, 32, 3), np.uint8))
    # Of a, b and c, which can be read, in two files of scores.
    spread = page.draw(tmp_path, pictures, opened, paths, (0.5,), limit=2)
    assert [image.caption for image in spread] == ["a.png", "b.png"]
    names = [f"{folder}/{number}.png" for folder in ("cat", "dog", "owl") for number in range(4)]
    scores = {text: np.tile(RISING, (12, 1)) for text in SCORES}
    write_part(tmp_path / "scores.npz", Part(tuple(names), ("no picture", *[""] * 11), scores), GRID)
    draw = lambda limit: page.draw(
        tmp_path, Pictures(tuple(names), pictures.read), opened, [tmp_path / "scores.npz"], (), limit
    )
    assert [image.caption for image in draw(3)] == ["cat/1.png", "dog/0.png", "owl/0.png"]
    assert draw(0) == [] and len(draw(50)) == 11


def test_names_of_any_length_and_rates_that_are_close_are_kept_apart(tmp_path, opened, paths):
    name = "/".join(letter * 90 for letter in "abcd") + "ö/owl.png"
    write_part(tmp_path / "scores.npz", Part((name,), ("",), dict.fromkeys(SCORES, RISING[None])), GRID)
    pictures = Pictures((name,), lambda index: np.zeros((16, 32, 3), np.uint8))
    page.draw(tmp_path / "drawn", pictures, opened, [tmp_path / "scores.npz"], (), limit=1)
    (drawing,) = (tmp_path / "drawn").iterdir()
    assert drawing.name.startswith("000000_") and drawing.name.endswith("d_ö_owl.png".replace("_ö", "ö"))
    assert list(page.agreement(paths, opened, (0.5, 0.502, 0.125)).flat()[0]) == [
        "scorer", "at 50%", "at 50.2%", "at 12.5%",
    ]  # fmt: skip


def test_the_page_says_that_not_all_are_drawn(part_of, opened, paths, drawn):
    shares = page.agreement(paths, opened, (0.5,))
    fill = lambda total: lambda section: page.describe(section, opened, drawn[1], shares, {}, 0.5, "", total)
    assert "All 90 were scored; 3 of them" in part_of(fill(90))[0].texts[1]
    assert len(part_of(fill(3))[0].texts) == 1
