"""The cost of layers in multiply-accumulates of a forward pass over one image, from shapes only."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from jaxprune.nn.site import Site

Where = Literal["before", "attention", "after", "embed"]


class BlockCost(NamedTuple):
    """The cost of a block, per row of its parts.

    Attributes:
      project: per incoming row (queries, keys and values).
      pair: per pair of a query and a key that it attends to (their product, and the weighted value).
      mix: per query (the output projection).
      feed: per row that passes through the MLP.
      keys: number of keys per query (a window); None means all rows.
      fixed: independent of the rows.
    """

    project: int
    pair: int
    mix: int
    feed: int
    keys: int | None = None
    fixed: int = 0


class Rows(NamedTuple):
    """The number of rows in each part of a block, including the prefix.

    Attributes:
      keys: rows that are projected and attended to.
      queries: rows that attention is computed for.
      fed: rows that pass through the MLP.
      left: rows that leave the block.
    """

    keys: int
    queries: int
    fed: int
    left: int


def rows_of(where: Where | None, rows_in: int, rows_out: int, *, leaves: bool = True) -> Rows:
    """The rows in the parts of a block whose reducer keeps `rows_out` of `rows_in` rows, including the prefix.

    Args:
      where: where the reducer acts, see `reduction.Reducer`; None without one.
      leaves: whether rows are removed from the sequence; otherwise they only skip the MLP, whatever `where` is.
    """
    if not leaves:
        return Rows(rows_in, rows_in, rows_out, rows_in)
    if where == "before":
        return Rows(rows_out, rows_out, rows_out, rows_out)
    if where == "attention":
        return Rows(rows_in, rows_out, rows_out, rows_out)
    return Rows(rows_in, rows_in, rows_out, rows_out)


def through(blocks: Sequence[tuple[Site, BlockCost, Any]], patches: int) -> list[tuple[BlockCost, Rows]]:
    """Returns the cost of each block for its actual keys, and the number of rows that each of its parts processes.

    Args:
      blocks: site, cost on the whole map, and reducer or None, for each block.
      patches: number of patches that enter the first block.
    """
    found, arriving, stage = [], patches, None
    for index, (site, cost, reducer) in enumerate(blocks):
        prefix, stays = site.num_prefix_tokens, _stays(site, reducer)
        if not site.leaves and (site.stage != stage or not stays):
            arriving = site.num_patches
        leave = arriving if reducer is None else reducer.num_rows()
        where = None if reducer is None else reducer.where
        rows = rows_of(where, prefix + arriving, prefix + leave, leaves=stays)
        if site.windows is not None and arriving < site.num_patches:
            cost = cost._replace(keys=arriving // math.prod(site.windows.counts))
        arriving, stage = rows.left - prefix, site.stage
        # Merged rows are restored at the end of a stage, and before a method that needs the whole map.
        goes_on = any(_stays(at, reducer) and at.stage == stage for at, _, reducer in blocks[index + 1 : index + 2])
        if not site.leaves and not goes_on:
            rows = rows._replace(left=prefix + site.num_patches)
        found.append((cost, rows))
    return found


def _stays(site: Site, reducer: Any) -> bool:
    """Whether a block processes the rows that the previous one kept."""
    return site.leaves or (site.cells is not None and (reducer is None or reducer.stays))


def linear_flops(layer: Any, rows: int) -> int:
    """Returns the cost of a `Linear` on `rows` tokens, without its bias."""
    inputs, outputs = layer.kernel.shape
    return rows * inputs * outputs


def block_flops(cost: BlockCost, rows: Rows) -> int:
    """Returns the cost of a block for its rows: 12·n·d² + 2·n²·d for a plain one of width d on n rows.

    The reducer's own cost is not included.
    """
    seen = rows.keys if cost.keys is None else cost.keys
    attention = rows.keys * cost.project + rows.queries * (seen * cost.pair + cost.mix)
    return attention + rows.fed * cost.feed + cost.fixed
