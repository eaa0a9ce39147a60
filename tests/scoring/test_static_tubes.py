"""Static tubes against Run-Length Tokenization: the published code, and its rule by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
from published_models import config_of
from support import golden, golden_names

from jaxprune import scoring
from jaxprune.errors import UserError
from jaxprune.scoring.static_tubes import run_lengths

FRAMES, SIDE, GRID = 6, 8, (3, 2, 2)
CLIPS = np.random.default_rng(0).uniform(size=(2, FRAMES, SIDE, SIDE, 3)).astype(np.float32)


def by_hand(clips, ends):
    """(b, 2, 2, 2): tubelets of two frames of 4×4 pixels, each against the one before."""
    found = np.zeros((len(clips), 2, 2, 2))
    for b, i, r, c in np.ndindex(found.shape):
        cell = clips[b, :, 4 * r : 4 * r + 4, 4 * c : 4 * c + 4]
        before, after = cell[2 * i : 2 * i + 2], cell[2 * i + 2 : 2 * i + 4]
        found[b, i, r, c] = np.abs(after[-1] - before[0] if ends else after - before).mean()
    return found


@pytest.mark.parametrize("compare", ["ends", "tubelets"])
def test_a_tube_scores_its_change(compare):
    scorer = scoring.create("static_tubes", grid=GRID, compare=compare)
    scores = np.asarray(scorer(jnp.asarray(CLIPS))).reshape(2, *GRID)
    expected = by_hand(CLIPS, compare == "ends")
    np.testing.assert_allclose(scores[:, 1:], expected, rtol=1e-5)
    np.testing.assert_allclose(scores[:, 0] - expected.max((1, 2, 3))[:, None, None], expected.mean(1), rtol=1e-4)
    keeps = np.asarray(scorer.changed(jnp.asarray(CLIPS), 0.33)).reshape(2, *GRID)
    np.testing.assert_array_equal(keeps, np.concatenate([np.ones((2, 1, 2, 2), bool), expected > 0.33], 1))


@pytest.mark.parametrize("name", golden_names("newer/rlt_*"))
def test_the_published_threshold_and_run_lengths(name):
    file = golden(name)
    config = config_of(file)
    grid = tuple(config["grid"])
    clips = jnp.asarray(file["clip"].transpose(0, 2, 3, 4, 1))
    assert clips.shape[1:4] == (grid[0] * config["tubelet"], *(side * config["patch"] for side in grid[1:]))
    kept = scoring.create("static_tubes", grid=grid).changed(clips, config["threshold"])
    np.testing.assert_array_equal(kept, file["mask"])
    np.testing.assert_array_equal(kept.sum(1), file["counts"])
    # The published lengths run over time last, unlike the tokens.
    by_place = lambda values: np.asarray(values).reshape(-1, *grid).transpose(0, 2, 3, 1).ravel()
    lengths = run_lengths(kept, grid)
    np.testing.assert_array_equal(by_place(lengths)[by_place(kept)], file["lengths"])
    np.testing.assert_array_equal(file["lengths_batch"], file["lengths"])
    # The tubelets that a place stands for in all are those of the clip.
    np.testing.assert_array_equal(np.asarray(lengths).reshape(-1, *grid).sum(1), grid[0])


def test_tubes_of_a_still_place_go_first():
    """As many as change are kept: those that the threshold keeps."""
    clips = CLIPS.copy()
    clips[:, :, :4] = clips[:, :1, :4]
    scorer = scoring.create("static_tubes", grid=GRID)
    scores, changed = scorer(jnp.asarray(clips)), np.asarray(scorer.changed(jnp.asarray(clips), 0.01))
    assert changed.sum(1).tolist() == [8, 8]
    for ids, row in zip(np.asarray(scorer.select(scores, 8)), changed, strict=True):
        assert sorted(ids) == np.flatnonzero(row).tolist()
    # Of the first tubelets, those whose place changes.
    assert set(np.asarray(scorer.select(scores, 2)).ravel().tolist()) == {2, 3}
    still = scorer(jnp.ones((1, FRAMES, SIDE, SIDE, 3)))
    assert np.asarray(scorer.select(still, 4)).tolist() == [[0, 1, 2, 3]]


def test_a_grid_of_one_tubelet_has_nothing_to_compare():
    assert scoring.create("static_tubes", grid=(1, 2, 2))(jnp.asarray(CLIPS)).tolist() == [[0.0] * 4] * 2


def test_what_makes_no_sense_is_refused():
    with pytest.raises(UserError, match=r"Unknown compare 'end'\. Did you mean 'ends'"):
        scoring.create("static_tubes", grid=GRID, compare="end")
    with pytest.raises(UserError, match=r"divide into \(3, 2, 2\) tubelets, and these are \(2, 5, 8"):
        scoring.create("static_tubes", grid=GRID)(jnp.asarray(CLIPS[:, :5]))
