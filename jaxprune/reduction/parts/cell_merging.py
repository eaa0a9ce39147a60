"""Merging inside the cells of windows, the same number of rows in every cell of one kind (`nn.window_cells`)."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from jaxprune.nn.tokens import Tokens
from jaxprune.nn.window_cells import Cells
from jaxprune.reduction.parts.base import StepReport
from jaxprune.reduction.parts.keep_rows import unchanged
from jaxprune.reduction.parts.row_maps import compose

Merge = Callable[[Tokens, Float[Array, "w k e"], int], tuple[Tokens, StepReport]]


def merge_in_cells(
    tokens: Tokens, metric: Float[Array, "b n e"], cells: Cells, num_keep: int, merge: Merge
) -> tuple[Tokens, StepReport]:
    """Merges rows of a map inside its cells, and orders the remaining rows by window.

    Args:
      tokens: the whole map in raster order, or the result of an earlier merge; without prefix tokens.
      metric: the vectors by which rows are compared.
      cells: the cells of the stage.
      num_keep: number of tokens that every window keeps.
      merge: (tokens of cells, each treated as an image; their metric; number of pairs) -> (merged tokens, report).
    """
    b, n = tokens.x.shape[:2]
    windows, before, after = cells.num_windows, cells.held(cells.tokens_of_window(n)), cells.held(num_keep)
    numbers = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[None, :, None], (b, n, 1))
    fields = (tokens.x, tokens.size[..., None], tokens.policy[..., None], tokens.position, metric, numbers)
    by_kind = [cells.split(field) for field in fields]
    by_number: dict[int, list[Array]] = {}
    # Kinds of cells with the same number of rows before and after are merged together.
    for was, now in dict.fromkeys(zip(before, after, strict=True)):
        kinds = [kind for kind, counts in enumerate(zip(before, after, strict=True)) if counts == (was, now)]
        x, size, policy, position, compared, number = (_stacked([field[kind] for kind in kinds]) for field in by_kind)
        assign = jnp.broadcast_to(jnp.arange(was, dtype=jnp.int32)[None], x.shape[:2])
        cell = Tokens(x, size[..., 0], policy[..., 0], assign, position)
        left, report = merge(cell, compared, was - now) if now < was else unchanged(cell, 0)
        assert report.kept is not None
        kept = jnp.take_along_axis(number[..., 0], report.kept, axis=1)
        results = (left.x, left.size, left.policy, left.position, kept, report.row_map)
        by_result = [_unstacked(result, len(kinds)) for result in results]
        by_number |= {kind: [result[place] for result in by_result] for place, kind in enumerate(kinds)}
    x, size, policy, position, kept, places = zip(*(by_number[kind] for kind in range(len(before))), strict=True)
    joined = lambda values: jnp.concatenate(values, axis=1).reshape(b, windows * num_keep, -1)
    # In the result, the rows of a cell follow those of the earlier cells of its window.
    window = jnp.broadcast_to(jnp.arange(windows, dtype=jnp.int32)[None] * num_keep, (b, windows)).reshape(-1, 1, 1)
    row_map = cells.join([place + window + sum(after[:kind]) for kind, place in enumerate(places)])[..., 0]
    merged = Tokens(
        joined(x), joined(size)[..., 0], joined(policy)[..., 0], compose(tokens.assign, row_map), joined(position)
    )
    return merged, StepReport(row_map=row_map, kept=joined(kept)[..., 0])


def _stacked(kinds: Sequence[Shaped[Array, "w k e"]]) -> Shaped[Array, "v k e"]:
    """Cells of several kinds as images; those of one window are adjacent, so that sharding over images is kept."""
    return jnp.stack(kinds, axis=1).reshape(-1, *kinds[0].shape[1:])


def _unstacked(values: Shaped[Array, "v k *e"], count: int) -> list[Shaped[Array, "w k e"]]:
    """The inverse of `_stacked`; a field with one number per row gets a last axis."""
    kinds = values.reshape(-1, count, values.shape[1], *(values.shape[2:] or (1,)))
    return [kinds[:, place] for place in range(count)]
