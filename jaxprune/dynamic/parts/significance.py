"""PaPr in a network with exits: places that a scorer ranks low are left out on every map of the network."""

import math
from typing import Any, Self

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn.params import copied, frozen
from jaxprune.reduction.parts.keep_rows import best
from jaxprune.scoring import Scorer
from jaxprune.scoring.parts.maps import to_grid


class Pruning(nnx.Module):
    """The share of the places that a scorer keeps, on maps of any size.

    Args:
      scorer: such as PaPr; frozen.
      keep_rate: of a map of p places int(keep_rate · p) are kept, at least one.

    Raises:
      UserError: the keep rate is not above 0 and below 1.
    """

    def __init__(self, scorer: Scorer, keep_rate: float):
        if not 0 < keep_rate < 1:
            raise UserError(f"keep_rate={keep_rate} must be above 0 and below 1: use a share such as 0.7.")
        self.scorer, self.keep_rate = frozen(scorer), float(keep_rate)

    def significance(self, images: Float[Array, "b H W c"]) -> Float[Array, "b h w"]:
        """The scorer's map at its own size, for normalised images."""
        scores, grid = self.scorer.native_scores(images)
        return scores.reshape(-1, *grid)

    def ids(self, significance: Float[Array, "b h w"], grid: tuple[int, int]) -> Int[Array, "b k"]:
        """The places that are kept on a map of another size, in raster order."""
        aligned = getattr(self.scorer, "align_corners", False)
        scores = to_grid(significance, grid, align_corners=aligned)
        return jnp.sort(best(scores, self.count(math.prod(grid))), axis=1)

    def count(self, places: int) -> int:
        """How many of some places are kept."""
        return max(1, int(self.keep_rate * places))


class Prunable(nnx.Module):
    """Base class of networks that can leave out places; `pruning` is None if they compute all."""

    pruning: Any

    def pruned(self, scorer: Scorer, keep_rate: float) -> Self:
        """Returns a copy that keeps the places that a scorer ranks best (PaPr, Mahmud et al., 2024, Tab. II).

        A map is the scorer's, resized to each grid of the network. With a keep rate of 1 the copy computes everything.

        Args:
          scorer: ranks patches from images as this network reads them, see `Scorer.prepared`.
          keep_rate: share of the places of every map, above 0 and at most 1.

        Raises:
          UserError: the keep rate is out of range.
        """
        network = copied(self)
        network.pruning = nnx.data(None)
        if keep_rate != 1:
            # The card of a saved network does not describe the scorer, so that it refuses to be made.
            network.pruning, network.recipe = nnx.data(Pruning(scorer, keep_rate)), None
        return network
