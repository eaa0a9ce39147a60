"""What layers cost in multiply-accumulates of a forward pass over one image; only shapes are read."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from jaxprune.nn.site import Site

Where = Literal["before", "attention", "after", "embed"]


class BlockCost(NamedTuple):
    """What a block costs, by the rows that reach its parts.

    Attributes:
      project: a row that arrives (queries, keys and values).
      pair: a query with a key that it sees (their product, and the value weighted by it).
      mix: a query (the output projection).
      feed: a row that passes the MLP.
      keys: keys that a query sees (a window); None is all rows.
      fixed: whatever the rows.
    """

    project: int
    pair: int
    mix: int
    feed: int
    keys: int | None = None
    fixed: int = 0


class Rows(NamedTuple):
    """The rows that each part of a block works on, prefix counted.

    Attributes:
      keys: rows that are projected, and attended to.
      queries: rows that attention is computed for.
      fed: rows that pass the MLP.
      left: rows that leave the block.
    """

    keys: int
    queries: int
    fed: int
    left: int


def rows_of(where: Where | None, rows_in: int, rows_out: int, *, leaves: bool = True) -> Rows:
    """The rows that the parts of a block work on when a reducer leaves `rows_out` of `rows_in`, prefix counted.

    Args:
      where: where the reducer acts, see `reduction.Reducer`; None without one.
      leaves: whether rows leave the sequence; otherwise they only skip the MLP, wherever the reducer would act.
    """
    if not leaves:
        return Rows(rows_in, rows_in, rows_out, rows_in)
    if where == "before":
        return Rows(rows_out, rows_out, rows_out, rows_out)
    if where == "attention":
        return Rows(rows_in, rows_out, rows_out, rows_out)
    return Rows(rows_in, rows_in, rows_out, rows_out)


def through(blocks: Sequence[tuple[Site, BlockCost, Any]], patches: int) -> list[tuple[BlockCost, Rows]]:
    """What the blocks of a network cost by their rows, and the rows that each part of each works on.

    Args:
      blocks: site, cost on the whole map, and reducer or None.
      patches: that enter the first block.
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
        # Rows that have merged are in their places at the end of a stage, and where a method needs that.
        goes_on = any(_stays(at, reducer) and at.stage == stage for at, _, reducer in blocks[index + 1 : index + 2])
        if not site.leaves and not goes_on:
            rows = rows._replace(left=prefix + site.num_patches)
        found.append((cost, rows))
    return found


def _stays(site: Site, reducer: Any) -> bool:
    """Whether a block works on the rows that the one before left."""
    return site.leaves or (site.cells is not None and (reducer is None or reducer.stays))


def linear_flops(layer: Any, rows: int) -> int:
    """Returns the cost of a `Linear` on `rows` tokens; its bias does not count."""
    inputs, outputs = layer.kernel.shape
    return rows * inputs * outputs


def block_flops(cost: BlockCost, rows: Rows) -> int:
    """Returns the cost of a block on so many rows: 12·n·d² + 2·n²·d for a plain one of width d on n rows.

    What a reducer computes itself is not part of it.
    """
    seen = rows.keys if cost.keys is None else cost.keys
    attention = rows.keys * cost.project + rows.queries * (seen * cost.pair + cost.mix)
    return attention + rows.fed * cost.feed + cost.fixed
