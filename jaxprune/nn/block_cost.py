"""The cost of layers in multiply-accumulates of a forward pass over one image, from shapes only."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from jaxprune.nn.site import Site

Where = Literal["before", "attention", "after", "behind", "ahead", "anew", "embed"]
Count = Any  # an int, or a scalar array where the number of tokens is learned


class BlockCost(NamedTuple):
    """The cost of a block, per token of its parts.

    Attributes:
      project: per incoming token (queries, keys and values).
      pair: per pair of a query and a key that it attends to (their product, and the weighted value).
      mix: per query (the output projection).
      feed: per token that passes through the MLP.
      keys: number of keys per query (a window); None means all tokens.
      fixed: independent of the tokens.
    """

    project: int
    pair: int
    mix: int
    feed: int
    keys: int | None = None
    fixed: int = 0


class BlockTokens(NamedTuple):
    """The number of tokens in each part of a block, including the prefix.

    Attributes:
      keys: tokens that are projected and attended to.
      queries: tokens that attention is computed for.
      fed: tokens that pass through the MLP.
      outgoing: tokens that leave the block.
      mixed: tokens that pass the output projection of attention; None means those that attention is computed for.
    """

    keys: Count
    queries: Count
    fed: Count
    outgoing: Count
    mixed: Count | None = None


def block_tokens(where: Where | None, tokens_in: Count, tokens_out: Count, *, removable: bool = True) -> BlockTokens:
    """The tokens in the parts of a block whose reducer keeps `tokens_out` of `tokens_in`, including the prefix.

    Args:
      where: where the reducer acts, see `reduction.Reducer`; None without one.
      removable: whether tokens are removed from the sequence; otherwise they only skip the MLP, whatever `where` is.
    """
    if not removable:
        return BlockTokens(tokens_in, tokens_in, tokens_out, tokens_in)
    if where in ("before", "anew"):
        return BlockTokens(tokens_out, tokens_out, tokens_out, tokens_out)
    if where == "ahead":
        return BlockTokens(tokens_in, tokens_in, tokens_out, tokens_out, mixed=tokens_out)
    if where == "behind":
        return BlockTokens(tokens_in, tokens_in, tokens_in, tokens_out)
    if where == "attention":
        return BlockTokens(tokens_in, tokens_out, tokens_out, tokens_out)
    return BlockTokens(tokens_in, tokens_in, tokens_out, tokens_out)


def through(
    blocks: Sequence[tuple[Site, BlockCost, Any]], patches: int, waiting: int = 0
) -> list[tuple[BlockCost, BlockTokens]]:
    """Returns the cost of each block for its actual keys, and the number of tokens that each of its parts processes.

    Args:
      blocks: site, cost on the whole map, and reducer or None, for each block.
      patches: number of patches that enter the first block.
      waiting: number of patches that were dropped before it, and come back before the last.
    """
    counts, arriving, stage = [], patches, None
    for index, (site, cost, reducer) in enumerate(blocks):
        prefix, reduced = site.num_prefix_tokens, _takes_reduced(site, reducer)
        if not site.removable and (site.stage != stage or not reduced):
            arriving = site.num_patches
        if index == len(blocks) - 1 and site.removable:
            arriving += waiting + sum(reducer.num_fused() for _, _, reducer in blocks if reducer is not None)
        leaving = arriving if reducer is None else reducer.num_tokens()
        where = None if reducer is None else reducer.where
        tokens = block_tokens(where, prefix + arriving, prefix + leaving, removable=reduced)
        if site.windows is not None and arriving < site.num_patches:
            cost = cost._replace(keys=arriving // math.prod(site.windows.counts))
        arriving, stage = tokens.outgoing - prefix, site.stage
        # Merged tokens are restored at the end of a stage, and before a method that needs the whole map.
        following = blocks[index + 1 : index + 2]
        goes_on = any(_takes_reduced(site, reducer) and site.stage == stage for site, _, reducer in following)
        if not site.removable and not goes_on:
            tokens = tokens._replace(outgoing=prefix + site.num_patches)
        counts.append((cost, tokens))
    return counts


def _takes_reduced(site: Site, reducer: Any) -> bool:
    """Whether a block processes only the tokens that the blocks before it kept."""
    return site.removable or (site.cells is not None and (reducer is None or reducer.merged_in_place))


class NetworkCost(NamedTuple):
    """The cost of a network in multiply-accumulates per image, as a function of the tokens that its blocks keep.

    Attributes:
      blocks: site and cost of each block.
      patches: number of patches that enter the first block.
      outside: everything outside of the blocks.
    """

    blocks: tuple[tuple[Site, BlockCost], ...]
    patches: int
    outside: int

    def total(self, reducers: Mapping[int, Any]) -> Count:
        """The cost of the network with reducers {layer: reducer}, without their own work.

        Args:
          reducers: whatever has `where`, `merged_in_place`, `num_tokens()` and `num_fused()`, numbers or arrays.
        """
        blocks = [(site, cost, reducers.get(site.layer)) for site, cost in self.blocks]
        return self.outside + sum(block_flops(*counts) for counts in through(blocks, self.patches))


def linear_flops(layer: Any, tokens: int) -> int:
    """Returns the cost of a `Linear` on that many tokens, without its bias."""
    inputs, outputs = layer.kernel.shape
    return tokens * inputs * outputs


def block_flops(cost: BlockCost, tokens: BlockTokens) -> Count:
    """Returns the cost of a block for its tokens: 12·n·d² + 2·n²·d for a plain one of width d on n tokens.

    The reducer's own cost is not included.
    """
    keys = tokens.keys if cost.keys is None else cost.keys
    mixed = tokens.queries if tokens.mixed is None else tokens.mixed
    attention = tokens.keys * cost.project + tokens.queries * keys * cost.pair + mixed * cost.mix
    return attention + tokens.fed * cost.feed + cost.fixed
