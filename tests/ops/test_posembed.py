import chex
import jax.numpy as jnp
import numpy as np
import pytest
from support import golden

from jaxprune import ops
from jaxprune.errors import UserError

GOLDEN = golden("mim/sincos_pos_embed")


@pytest.mark.parametrize(("dim", "side", "prefix"), [(32, 4, 1), (64, 7, 0), (48, 14, 1)])
def test_sincos_matches_mae(dim, side, prefix):
    table = ops.sincos_2d(dim, (side, side), prefix)
    assert table.dtype == np.float32
    np.testing.assert_allclose(table, GOLDEN[f"pos_d{dim}_g{side}_cls{prefix}"], atol=1e-6)


def test_sincos_of_an_oblong_grid_is_a_corner_of_the_square_one():
    square = ops.sincos_2d(16, (5, 5)).reshape(5, 5, 16)
    np.testing.assert_array_equal(ops.sincos_2d(16, (2, 5)).reshape(2, 5, 16), square[:2])
    np.testing.assert_array_equal(ops.sincos_2d(16, (5, 3)).reshape(5, 3, 16), square[:, :3])


def test_sincos_refuses_a_width_it_cannot_split():
    with pytest.raises(UserError, match="divisible by 4, not 30"):
        ops.sincos_2d(30, (2, 2))


def test_resample_matches_mae_and_copies_the_prefix():
    table = jnp.asarray(GOLDEN["interp_in"])
    moved = ops.resample(table, (4, 4), (7, 7), 1)
    chex.assert_trees_all_close(moved, GOLDEN["interp_out"], atol=1e-5)
    np.testing.assert_array_equal(moved[:, 0], table[:, 0])
    with pytest.raises(UserError, match="17 rows is not a 4×4 grid with 0 prefix"):
        ops.resample(table, (4, 4), (7, 7), 0)
