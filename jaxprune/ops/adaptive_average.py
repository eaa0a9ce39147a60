"""Averages of a map over cells that cover it, and may overlap (PyTorch's adaptive average pooling)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxprune.ops.tracing import RESAMPLING


def adaptive_matrix(old: int, new: int) -> Float[np.ndarray, "{new} {old}"]:
    """Returns the averages along one side, float32: cell i covers places ⌊i·old/new⌋ to ⌈(i+1)·old/new⌉.

    >>> adaptive_matrix(3, 2).tolist()
    [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """
    places = np.eye(old)
    means = [places[row * old // new : -(-(row + 1) * old // new)].mean(0) for row in range(new)]
    return np.stack(means).astype(np.float32)


@jax.named_scope(RESAMPLING)
def adaptive_average(maps: Float[Array, "b h w c"], side: int) -> Float[Array, "b {side} {side} c"]:
    """Returns averages of maps over side × side cells, computed in float32, in the dtype of the maps.

    >>> adaptive_average(jnp.ones((1, 4, 5, 2)), 3).shape
    (1, 3, 3, 2)
    """
    rows, columns = (jnp.asarray(adaptive_matrix(length, side)) for length in maps.shape[1:3])
    bands = jnp.einsum("yr,brcd->bycd", rows, maps.astype(jnp.float32), precision="highest")
    return jnp.einsum("xc,bycd->byxd", columns, bands, precision="highest").astype(maps.dtype)
