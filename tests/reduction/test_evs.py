"""EVS against the published implementation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hosts import host
from published_models import config_of, stage
from support import golden, golden_names, quick_compile

from jaxprune import reduction
from jaxprune.errors import UserError
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import At, Plan
from jaxprune.reduction.evs import EVS
from jaxprune.reduction.parts.step_sizes import Rate


@pytest.mark.parametrize("name", golden_names("newer/evs_*"))
def test_keeps_the_published_rows(name):
    file = golden(name)
    config = config_of(file)
    grid = tuple(config["grid"])
    tubes, frame = int(np.prod(grid)), int(np.prod(grid[1:]))
    # The published rate is of what leaves, and the first frame always stays.
    num_keep = max(frame, Rate(1 - config["pruning_rate"]).tokens(tubes, tubes))
    assert num_keep == config["kept"]
    reducer = EVS(stage(tubes, num_keep, grid=grid, num_prefix_tokens=0))
    call = jax.jit(lambda tokens: reducer(tokens, None), compiler_options=quick_compile())
    tokens, report = call(all_present(jnp.asarray(file["x"])[None], 0))
    np.testing.assert_array_equal(report.kept[0], np.flatnonzero(file["mask"]))
    np.testing.assert_array_equal(tokens.x[0], file["x"][file["mask"]])


REFUSED = {
    "less than a frame": (
        lambda: reduction.apply(host("clip"), Plan("evs", 0.4, reduction_loc=(1,))),
        r"16 of the 32 rows of a clip, and the plan keeps 12 at block 1: use keep_rate=0\.5 or num_keep=16",
    ),
    "images": (
        lambda: reduction.apply(host("cls"), Plan("evs", 0.7, reduction_loc=(1,))),
        r"evs works on a grid \(frames, rows, columns\), and block 1 has \(4, 4\): use a network for clips",
    ),
    "a second step": (
        lambda: reduction.apply(host("clip"), Plan("evs", 0.9, reduction_loc=(1, 2))),
        "evs at block 2 needs all 32 rows of the map in their order, and gets 28 behind an earlier step",
    ),
    "rows in another order": (
        lambda: reduction.apply(host("clip"), Plan(steps=(At(0, "ats", keep_rate=1.0), At(1, "evs", keep_rate=0.7)))),
        "evs at block 1 needs all 32 rows of the map in their order, and gets 32 behind",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses_what_it_cannot_follow(what):
    make, message = REFUSED[what]
    with pytest.raises(UserError, match=message):
        make()


def test_may_follow_a_step_that_removes_nothing():
    steps = (At(0, "topk", keep_rate=1.0), At(1, "evs", keep_rate=0.7))
    assert [step.num_tokens() for step in reduction.installed(reduction.apply(host("clip"), Plan(steps=steps)))] == [
        32,
        22,
    ]
