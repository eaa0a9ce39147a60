"""Tokens of a coarse grid on a finer one: each side doubled by repetition, then averaged to the new length (DVT)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxprune.ops.adaptive_average import adaptive_matrix


def finer_matrix(old: int, new: int) -> Float[np.ndarray, "{new} {old}"]:
    """Returns the resize of one side, float32: nearest to 2·old, then an adaptive average to `new`.

    >>> finer_matrix(2, 3).tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    return np.ascontiguousarray(adaptive_matrix(2 * old, new) @ np.repeat(np.eye(old, dtype=np.float32), 2, axis=0))


def finer_tokens(tokens: Float[Array, "*lead n d"], matrix: Float[np.ndarray, "new old"]) -> Float[Array, "*lead m d"]:
    """Returns a class token and old² patch tokens as the same class token and new² patch tokens.

    >>> finer_tokens(jnp.arange(5.0)[:, None], finer_matrix(2, 3))[:, 0].tolist()
    [0.0, 1.0, 1.5, 2.0, 2.0, 2.5, 3.0, 3.0, 3.5, 4.0]
    """
    new, old = matrix.shape
    *lead, _, width = tokens.shape
    rows = jnp.asarray(matrix, tokens.dtype)
    grid = tokens[..., 1:, :].reshape(*lead, old, old, width)
    # The larger factor last, so that the first product is the smaller one.
    grid = jnp.einsum("yr,...rcd->...ycd", rows, grid)
    grid = jnp.einsum("xc,...ycd->...yxd", rows, grid)
    return jnp.concatenate([tokens[..., :1, :], grid.reshape(*lead, new * new, width)], axis=-2)


def finer_relations(
    relations: Float[Array, "*lead n n"], matrix: Float[np.ndarray, "new old"]
) -> Float[Array, "*lead m m"]:
    """Returns relations between the tokens of one grid as those of another: `finer_tokens` of columns and of rows."""
    of_rows = finer_tokens(relations, matrix)
    return jnp.swapaxes(finer_tokens(jnp.swapaxes(of_rows, -1, -2), matrix), -1, -2)
