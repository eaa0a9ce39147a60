"""Masks drawn by weights: patches with larger weights are more likely masked or thrown (AMT, Gui et al., 2022)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.mim.parts.block_masker import to_patches
from jaxprune.mim.parts.masker import Masker, Masks, ascending, through_encoder


@dataclasses.dataclass(frozen=True)
class WeightedMasker(Masker):
    """Draws blocks of patches by their weights, without replacement.

    The first drawn are masked and reconstructed, the next are masked and thrown, and the last are visible.

    Args:
      grid: patches down and across.
      num_visible: number of patches per image that the encoder sees, whole blocks.
      num_retained: number of masked patches to reconstruct, whole blocks.
      block: (rows, columns) of patches in a block; each must divide that of the grid.
      mask_tokens: whether mask tokens go through the encoder, as in SimMIM.

    Raises:
      UserError: the numbers leave nothing to see or to decode.
    """

    grid: tuple[int, int]
    num_visible: int
    num_retained: int
    block: tuple[int, int] = (1, 1)
    mask_tokens: bool = False

    @property
    def blocks(self) -> tuple[int, int]:
        """(rows, columns) of blocks."""
        return self.grid[0] // self.block[0], self.grid[1] // self.block[1]

    def __post_init__(self):
        if self.num_visible < 1 or not 1 <= self.num_retained <= self.num_masked:
            raise UserError(
                f"Of {self.num_patches} patches {self.num_visible} would be visible and {self.num_retained} decoded: "
                "choose ratios that leave at least one of each."
            )

    def draw(
        self,
        batch: int,
        *,
        key: PRNGKeyArray | None = None,
        weights: Float[Array, "b p"] | None = None,
        noise: Float[Array, "b blocks"] | None = None,
        ids_shuffle: Int[Array, "b blocks"] | None = None,
        first: Any = None,
    ) -> Masks:
        """Draws the masks of `batch` images; visible patches are in the order of the draw.

        Args:
          key: draws `noise` where it is not passed.
          weights: weights of the patches, 0 or more; None means equal weights. The weight of a block is the sum over
            its patches; blocks of weight 0 are drawn last.
          noise: one number in (0, 1) per block; with equal weights the largest are masked and the smallest visible.
          ids_shuffle: the order in which blocks are drawn, instead of weights and noise.
          first: ignored; used by maskers that choose thrown patches by furthest point sampling.

        Raises:
          UserError: there are neither random numbers nor a key.
        """
        patches_of_block = math.prod(self.block)
        if ids_shuffle is None:
            if noise is None:
                if key is None:
                    raise UserError("Masking is random: pass key=, noise= or ids_shuffle=.")
                noise = jax.random.uniform(key, (batch, self.num_patches // patches_of_block))
            of_blocks = jnp.ones_like(noise) if weights is None else self._of_blocks(weights)
            ids_shuffle = weighted_order(of_blocks, noise)
        # Masks have the visible patches first.
        block_order = jnp.roll(ids_shuffle.astype(jnp.int32), self.num_visible // patches_of_block, axis=1)
        rank = to_patches(jnp.argsort(block_order, axis=1), self.blocks, self.block)
        visible, retained = self.num_visible // patches_of_block, self.num_retained // patches_of_block
        masked = rank >= visible
        decoded = masked & (rank < visible + retained)
        if self.mask_tokens:
            return through_encoder(masked, decoded, self.num_visible + self.num_retained)
        order = jnp.argsort(rank, axis=1, stable=True).astype(jnp.int32)
        ids_restore = jnp.argsort(order, axis=1).astype(jnp.int32)
        ids_present = ascending(~masked | decoded, self.num_visible + self.num_retained)
        return Masks(order[:, : self.num_visible], ids_restore, masked, decoded, ids_present)

    def _of_blocks(self, weights: Float[Array, "b p"]) -> Float[Array, "b blocks"]:
        (rows, columns), (height, width) = self.blocks, self.block
        return weights.reshape(-1, rows, height, columns, width).sum((2, 4)).reshape(len(weights), -1)


def weighted_order(weights: Float[Array, "b p"], noise: Float[Array, "b p"]) -> Int[Array, "b p"]:
    """A random order of patches, drawn by weight without replacement (Gumbel top-k; Kool et al., 2019).

    Args:
      noise: uniform in (0, 1).
    """
    tiny = jnp.finfo(jnp.float32).tiny
    gumbel = -jnp.log(-jnp.log(jnp.clip(noise.astype(jnp.float32), tiny, 1 - 2**-24)))
    log_weights = jnp.where(weights > 0, jnp.log(jnp.maximum(weights.astype(jnp.float32), tiny)), -jnp.inf)
    return jnp.argsort(-(log_weights + gumbel), axis=1, stable=True).astype(jnp.int32)
