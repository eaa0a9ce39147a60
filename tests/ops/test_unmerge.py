"""From rows back to patches."""

import jax.numpy as jnp
import numpy as np

from jaxprune import reduction


def test_gives_every_patch_its_row_and_fills_the_dropped():
    rows = jnp.asarray([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    assign = jnp.asarray([[0, 1, -1], [1, 1, 0]])
    expected = [[[1, 2], [3, 4], [9, 9]], [[7, 8], [7, 8], [5, 6]]]
    np.testing.assert_array_equal(reduction.unmerge(rows, assign, fill=9.0), expected)
    assert (reduction.unmerge(rows, assign)[0, 2] == 0).all()
