"""Random square blocks of patches (SimMIM, Xie et al., 2022, Sec. 3.2), of which a part may be thrown (PR-MIM)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from jaxprune.errors import UserError
from jaxprune.mim.masker import Masker, Masks, check_retained, choose_retained, through_encoder
from jaxprune.ops.sampling import num_thrown


@dataclasses.dataclass(frozen=True)
class BlockMasker(Masker):
    """Masks blocks of patches, and leaves the encoder the masked patches that are not thrown.

    >>> masker = BlockMasker((14, 14), (2, 2), mask_ratio=0.6, throw_ratio=0.3)
    >>> masker.num_masked, masker.num_retained
    (120, 62)

    Args:
      grid: patches down and across.
      block: patches of a block, down and across.
      mask_ratio: fraction of the blocks that are masked, rounded up.
      throw_ratio: fraction of the patches, below `mask_ratio`, that never enters the encoder.
      retain: how the other masked patches are chosen, see `RandomMasker`.

    Raises:
      UserError: the grid is no whole number of blocks, or the ratios leave nothing to see or to reconstruct.
    """

    grid: tuple[int, int]
    block: tuple[int, int] = (1, 1)
    mask_ratio: float = 0.6
    throw_ratio: float = 0.0
    retain: str = "furthest"

    def __post_init__(self):
        if any(side < 1 or patches % side for patches, side in zip(self.grid, self.block, strict=True)):
            raise UserError(
                f"A grid of {self.grid[0]}x{self.grid[1]} patches is no whole number of blocks of "
                f"{self.block[0]}x{self.block[1]}: choose an img_size that mask_patch divides."
            )
        if not 0 <= self.mask_ratio < 1 or self.num_masked >= self.num_patches:
            raise UserError(
                f"mask_ratio={self.mask_ratio} leaves none of {math.prod(self.blocks)} blocks visible (the number of "
                "masked ones is rounded up): choose a lower ratio in [0, 1), or a smaller mask_patch."
            )
        check_retained(self.num_masked, self.num_thrown, self.mask_ratio, self.throw_ratio, self.retain)

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks down and across."""
        return self.grid[0] // self.block[0], self.grid[1] // self.block[1]

    @property
    def num_visible(self) -> int:
        blocks = math.prod(self.blocks)
        return (blocks - math.ceil(blocks * self.mask_ratio)) * math.prod(self.block)

    @property
    def num_thrown(self) -> int:
        """Masked patches that never enter the encoder."""
        return num_thrown(self.num_patches, self.throw_ratio)

    @property
    def num_retained(self) -> int:
        return self.num_masked - self.num_thrown

    def draw(
        self,
        batch: int,
        *,
        key: PRNGKeyArray | None = None,
        noise: Float[Array, "b blocks"] | None = None,
        mask: Shaped[Array | np.ndarray, "b ..."] | None = None,
        first: Int[Array, "b"] | None = None,
        retained: Shaped[Array | np.ndarray, "b ..."] | None = None,
    ) -> Masks:
        """Draws the masks of `batch` images.

        Args:
          key: draws what is random and not passed.
          noise: one number a block; the least are visible.
          mask: in place of drawn blocks, which patches are masked: 1 or True, as (b, rows, columns) or (b, patches).
            Where patches are thrown, each image has as many masked ones (`num_masked` of them under `jax.jit`).
          first: where furthest sampling starts, as an index into each image's list of masked patches.
          retained: in place of a choice, which masked patches are reconstructed, laid out like `mask`.

        Raises:
          UserError: there is nothing to draw from, or what is passed does not fit.
        """
        throws = self.num_thrown > 0
        chooses = throws and retained is None and (first is None or self.retain == "random")
        if key is None and ((mask is None and noise is None) or chooses):
            raise UserError("Masking is random: pass key=, or mask= (and first= where furthest sampling starts).")
        keys: Any = (None, None) if key is None else jax.random.split(key)
        masked = self._drawn(batch, keys[0], noise) if mask is None else self._given("mask", mask, batch)
        if not throws:
            if retained is not None:
                raise UserError("retained= is of no use where nothing is thrown: leave it out, or set throw_ratio.")
            chosen = masked
        else:
            num_retained = _count("mask", mask, self.num_masked) - self.num_thrown
            if retained is None:
                chosen = choose_retained(masked, num_retained, self.grid, self.retain, key=keys[1], first=first)
            elif (found := _count("retained", retained, num_retained)) == num_retained:
                chosen = self._given("retained", retained, batch) & masked
            else:
                raise UserError(f"retained has {found} patches an image and not {num_retained}: see throw_ratio.")
        return through_encoder(masked, chosen, self.num_patches - self.num_thrown)

    def _drawn(self, batch: int, key: Any, noise: Float[Array, "b n"] | None) -> Bool[Array, "b p"]:
        blocks = math.prod(self.blocks)
        noise = jax.random.uniform(key, (batch, blocks)) if noise is None else jnp.asarray(noise)
        if noise.shape != (batch, blocks):
            raise UserError(f"noise is of shape {noise.shape} and not {(batch, blocks)}: a number for each block.")
        rank = jnp.argsort(jnp.argsort(noise, axis=1), axis=1)
        return to_patches(rank >= self.num_visible // math.prod(self.block), self.blocks, self.block)

    def _given(self, name: str, cells: Shaped[Array | np.ndarray, "b ..."], batch: int) -> Bool[Array, "b p"]:
        shapes = ((batch, *self.grid), (batch, self.num_patches))
        if np.shape(cells) not in shapes:
            raise UserError(f"{name} is of shape {np.shape(cells)} and neither {shapes[0]} nor {shapes[1]}.")
        return jnp.asarray(cells).reshape(batch, self.num_patches) > 0


def to_patches(of_blocks: Shaped[Array, "b n"], blocks: tuple[int, int], block: tuple[int, int]) -> Array:
    """What is known of blocks as known of each patch in them, both in raster order.

    Args:
      blocks: down and across.
      block: patches of one, down and across.
    """
    grid = of_blocks.reshape(-1, *blocks).repeat(block[0], axis=1).repeat(block[1], axis=2)
    return grid.reshape(len(of_blocks), -1)


def _count(name: str, cells: Shaped[Array | np.ndarray, "b ..."] | None, usual: int) -> int:
    """The number of cells that are set in each image, which must be one number; `usual` where it is not known yet."""
    if cells is None or isinstance(cells, Tracer):
        return usual
    counts = (np.asarray(cells) > 0).reshape(len(cells), -1).sum(1)
    if counts.min() != counts.max():
        raise UserError(
            f"{name} has between {counts.min()} and {counts.max()} patches an image: where patches are thrown there is "
            "one number for all images. Use reconstruction='full', or as many in each."
        )
    return int(counts[0])
