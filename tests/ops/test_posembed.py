import math

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from support import golden, in_names

from jaxprune import ops
from jaxprune.errors import UserError

GOLDEN = golden("mim/sincos_pos_embed")


@pytest.mark.parametrize(("name", "prefix"), in_names(GOLDEN, r"(pos_.*_cls([01]))"))
def test_sincos_matches_mae(name, prefix):
    rows, dim = GOLDEN[name].shape
    side = math.isqrt(rows - int(prefix))
    table = ops.sincos_2d(dim, (side, side), int(prefix))
    assert table.dtype == np.float32
    np.testing.assert_allclose(table, GOLDEN[name], atol=1e-6)


def test_sincos_of_an_oblong_grid_is_a_corner_of_the_square_one():
    square = ops.sincos_2d(16, (5, 5)).reshape(5, 5, 16)
    np.testing.assert_array_equal(ops.sincos_2d(16, (2, 5)).reshape(2, 5, 16), square[:2])
    np.testing.assert_array_equal(ops.sincos_2d(16, (5, 3)).reshape(5, 3, 16), square[:, :3])


def test_sincos_refuses_a_width_it_cannot_split():
    with pytest.raises(UserError, match="divisible by 4, not 30"):
        ops.sincos_2d(30, (2, 2))


def test_resample_matches_mae_and_copies_the_prefix():
    table = jnp.asarray(GOLDEN["interp_in"])
    before, after = (math.isqrt(GOLDEN[name].shape[1] - 1) for name in ("interp_in", "interp_out"))
    moved = ops.resample(table, (before, before), (after, after), 1)
    chex.assert_trees_all_close(moved, GOLDEN["interp_out"], atol=1e-5)
    np.testing.assert_array_equal(moved[:, 0], table[:, 0])
    with pytest.raises(UserError, match=f"{before**2 + 1} rows is not a {before}×{before} grid with 0 prefix"):
        ops.resample(table, (before, before), (after, after), 0)
