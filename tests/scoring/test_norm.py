"""Norm without a network: of the pixels of patches, and of tubes."""

import jax.numpy as jnp
import numpy as np
import pytest
from support import slow_but

from jaxprune import scoring
from jaxprune.errors import UserError

CLIP = ((4, 4, 6), (2, 2, 3))


@pytest.mark.parametrize("cells", slow_but([CLIP], [((4, 6), (2, 3)), CLIP]), ids=str)
def test_it_is_the_length_of_each_cell(cells):
    sides, grid = cells
    images = np.random.default_rng(0).normal(size=(2, *sides, 3)).astype(np.float32)
    found = np.asarray(scoring.create("norm", grid=grid)(jnp.asarray(images))).reshape(2, *grid)
    for place in np.ndindex(*grid):
        cell = images[(slice(None), *(slice(2 * i, 2 * i + 2) for i in place))]
        np.testing.assert_allclose(found[(slice(None), *place)], np.linalg.norm(cell.reshape(2, -1), axis=1), rtol=1e-5)


@pytest.mark.parametrize(("sides", "grid"), [((5, 6), (2, 3)), ((4, 4, 5), (2, 2, 3)), ((4, 6), (2, 2, 3))])
def test_what_does_not_divide_is_refused(sides, grid):
    with pytest.raises(UserError, match="do not divide"):
        scoring.create("norm", grid=grid)(jnp.zeros((1, *sides, 3)))
