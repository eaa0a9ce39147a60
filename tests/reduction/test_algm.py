"""ALGM against the published implementation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from published_models import CLOSE, PROBABILITY, config_of, prefixed, stage
from support import golden, golden_names, quick_compile

from jaxprune import models, reduction
from jaxprune.errors import UserError
from jaxprune.reduction import At, Plan
from jaxprune.reduction.algm import ALGM, num_over, window_similarity, windows_of

FILES = golden_names("newer/algm_*")


def call(reducer, x, size=None):
    run = jax.jit(lambda tokens: reducer(tokens, None), compiler_options=quick_compile())
    return run(prefixed(x, size))


def check_merged(tokens, report, file, which):
    """Rows, sizes, and which row every incoming row is in."""
    chex.assert_trees_all_close(tokens.x, file[f"{which}_x"], **CLOSE)
    np.testing.assert_allclose(tokens.size, file[f"{which}_size"][:, :, 0], **CLOSE)
    rows = np.arange(tokens.x.shape[1] - 1)
    source = np.asarray(report.row_map)[:, None, :] == rows[None, :, None]
    np.testing.assert_array_equal(source, file[f"{which}_source"][:, 1:, 1:])


@pytest.mark.parametrize("name", FILES)
def test_windows_merge_as_published(name):
    file = golden(name)
    config = config_of(file)
    grid, window = tuple(config["grid"]), config["window"]
    similarity = window_similarity(jnp.asarray(file["x"][:, 1:]), grid, window)
    np.testing.assert_allclose(similarity, file["window_similarity"], **PROBABILITY)
    over = (np.asarray(similarity) >= config["threshold"]).sum(1)
    np.testing.assert_array_equal(over, config["over_threshold"])
    # The published code merges as many windows in every image as in that with the fewest.
    patches, merged = int(np.prod(grid)), int(over.min())
    assert merged == config["windows_merged"]
    step = stage(patches, patches - merged * (window**2 - 1), grid=grid)
    reducer = ALGM(step, window=window)
    assert reducer.num_merged() == merged
    check_merged(*call(reducer, file["x"]), file, "local")


@pytest.mark.parametrize("name", FILES)
def test_pairs_merge_later_as_published(name):
    file = golden(name)
    config = config_of(file)
    x, rows = jnp.asarray(file["local_x"]), file["local_x"].shape[1] - 1
    merged = int(num_over(x, config["global_layer"], 1).min())
    assert merged == config["global_merged"]
    reducer = ALGM(stage(rows, rows - merged, grid=tuple(config["grid"]), index=1), window=config["window"])
    check_merged(*call(reducer, x, file["local_size"][:, :, 0]), file, "global")


def test_the_edge_of_a_map_and_the_frames_of_a_clip_stay_apart():
    assert windows_of((5, 4), 2).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert windows_of((2, 2, 2), 2).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_plan_merges_windows_first_and_pairs_later():
    sizes = {"img_size": 10, "patch_size": 2, "embed_dim": 8, "depth": 3, "num_heads": 2}
    model = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    fast = reduction.apply(model, Plan("algm", num_keep=(15, 10, 2), reduction_loc=(0, 1, 2)))
    # Three windows of four; then five pairs; then at most half.
    assert [reducer.num_tokens() for reducer in reduction.installed(fast)] == [16, 10, 5]
    assert [reducer.in_windows for reducer in reduction.installed(fast)] == [True, False, False]


REFUSED = {
    "windows": (lambda: Plan("algm", 0.2, reduction_loc=(1,)), r"keep_rate 0\.2 is too low for algm.* use 0\.25"),
    "large windows": (lambda: Plan("algm", 0.1, reduction_loc=(1,), window=3), r"use 0\.1112"),
    "pairs": (lambda: Plan("algm", 0.4, reduction_loc=(1, 2)), r"keep_rate 0\.4 is too low .* use 0\.5"),
    "rates": (lambda: Plan("algm", (0.6, 0.2, 0.1), (1, 2, 3)), r"use \(0\.6, 0\.3, 0\.15\)"),
    "steps": (lambda: Plan(steps=(At(0, "topk", keep_rate=0.9), At(1, "algm", keep_rate=0.3))), r"use 0\.45"),
    "no window": (lambda: Plan.from_text("algm:keep_rate=0.7,window=0"), r"window=0 holds no two patches .* use 2"),
    "a window in words": (lambda: Plan.from_text("algm:keep_rate=0.7,window=a"), "window 'a' is not a number"),
    "no window by number": (
        lambda: Plan("algm", num_keep=8, reduction_loc=(1,), window=1),
        "window=1 holds no two patches",
    ),
    "a window of one": (lambda: ALGM(stage(16, 8, grid=(4, 4)), window=1), r"window=1 does not fit .* use 2 to 4"),
    "a window too large": (lambda: ALGM(stage(16, 8, grid=(4, 4)), window=5), "window=5 does not fit"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses_what_it_cannot_follow(what):
    make, message = REFUSED[what]
    with pytest.raises(UserError, match=message):
        make()
