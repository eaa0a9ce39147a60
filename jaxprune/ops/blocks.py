"""Row-wise functions computed in blocks of rows, so that a matrix of all pairs is never held as a whole."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


def by_rows(f: Callable[..., Any], *rows: Array, axis: int = 1, size: int | None = None) -> Any:
    """Returns `f(*rows)`, computed in blocks of rows one after the other.

    The backward pass recomputes each block, so no intermediate of `f` is kept.

    Args:
      f: maps arrays with any number of rows along `axis` to a pytree of arrays with as many rows along the same axis; a
        row of the results must depend only on the same row of the arguments. It is also called with padding rows of
        zeros, whose results are discarded.
      rows: arrays of the same length along `axis`.
      size: maximum rows per block; None, or a size that all rows fit in, calls `f` once.

    >>> import jax.numpy as jnp
    >>> x = jnp.arange(10.0)[None]
    >>> by_rows(lambda rows: (rows[:, :, None] - x[:, None, :]).max(2), x, size=8)[0, :3].tolist()
    [0.0, 1.0, 2.0]
    """
    return rows_and_sums(lambda *block: (f(*block), ()), *rows, axis=axis, size=size)[0]


def rows_and_sums(f: Callable[..., Any], *rows: Array, axis: int = 1, size: int | None = None) -> tuple[Any, Any]:
    """As `by_rows`, for an `f` that returns (row-wise results, results to be summed over blocks).

    Args:
      f, rows, axis, size: see `by_rows`; a row of zeros must add nothing.
    """
    length = rows[0].shape[axis]
    if size is None or length <= size:
        return f(*rows)
    length_of_block = -(-length // -(-length // size))
    length_of_block += -length_of_block % 8
    count = -(-length // length_of_block)

    def split(values: Array) -> Array:
        widths = [(0, 0)] * values.ndim
        widths[axis] = (0, count * length_of_block - length)
        shape = (*values.shape[:axis], count, length_of_block, *values.shape[axis + 1 :])
        return jnp.moveaxis(jnp.pad(values, widths).reshape(shape), axis, 0)

    def join(blocks: Array) -> Array:
        values = jnp.moveaxis(blocks, 0, axis)
        values = values.reshape(*values.shape[:axis], count * length_of_block, *values.shape[axis + 2 :])
        return jax.lax.slice_in_dim(values, 0, length, axis=axis)

    again = jax.checkpoint(f, prevent_cse=False)  # a loop keeps its steps apart by itself

    def step(sums, block):
        results, added = again(*block)
        return jax.tree.map(jnp.add, sums, added), results

    blocks = tuple(map(split, rows))
    start = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), jax.eval_shape(f, *(x[0] for x in blocks))[1])
    sums, results = jax.lax.scan(step, start, blocks)
    return jax.tree.map(join, results), sums
