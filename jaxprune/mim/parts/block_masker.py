"""Random square blocks of patches (SimMIM, Xie et al., 2022, Sec. 3.2), some of which may be thrown (PR-MIM)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from jaxprune.errors import UserError
from jaxprune.mim.parts.masker import Masker, Masks, check_retained, choose_retained, count_of_each, through_encoder
from jaxprune.nn.optional_key import split_key
from jaxprune.ops.patch_sampling import checked_first, num_thrown

_MASK_PATCH = 32  # side of a masked block in pixels, as published


@dataclasses.dataclass(frozen=True)
class BlockMasker(Masker):
    """Masks blocks of patches; masked patches that are not thrown still enter the encoder.

    >>> masker = BlockMasker((14, 14), (2, 2), mask_ratio=0.6, throw_ratio=0.3)
    >>> masker.num_masked, masker.num_retained
    (120, 62)

    Args:
      grid: patches down and across.
      block: (rows, columns) of patches in a block.
      mask_ratio: fraction of the blocks to mask, rounded up.
      throw_ratio: fraction of the patches, below `mask_ratio`, that never enter the encoder.
      retain: how the other masked patches are chosen, see `RandomMasker`.

    Raises:
      UserError: the grid is not a whole number of blocks, or the ratios leave nothing to see or to reconstruct.
    """

    grid: tuple[int, int]
    block: tuple[int, int] = (1, 1)
    mask_ratio: float = 0.6
    throw_ratio: float = 0.0
    retain: str = "furthest"

    def __post_init__(self):
        check_blocks(self.grid, self.block)
        if not 0 <= self.mask_ratio < 1 or self.num_masked >= self.num_patches:
            raise UserError(
                f"mask_ratio={self.mask_ratio} leaves none of {math.prod(self.blocks)} blocks visible (the number of "
                "masked ones is rounded up): choose a lower ratio in [0, 1), or a smaller mask_patch."
            )
        check_retained(self.num_masked, self.num_thrown, self.mask_ratio, self.throw_ratio, self.retain)

    @property
    def blocks(self) -> tuple[int, int]:
        """(rows, columns) of blocks."""
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
          key: draws the random numbers that are not passed.
          noise: one number per block; the blocks with the smallest ones are visible.
          mask: the masked patches, instead of drawn blocks: 1 or True, as (b, rows, columns) or (b, patches). If
            patches are thrown, all images must have the same number of masked ones (`num_masked` under `jax.jit`).
          first: start of furthest point sampling, as an index into each image's list of masked patches.
          retained: the masked patches to reconstruct, instead of choosing them; laid out like `mask`.

        Raises:
          UserError: there are neither random numbers nor a key, an argument has a wrong shape, `first` is out of range,
            or `mask` leaves nothing to decode.
        """
        throws = self.num_thrown > 0
        chooses = throws and retained is None and (first is None or self.retain == "random")
        if key is None and ((mask is None and noise is None) or chooses):
            raise UserError("Masking is random: pass key=, or mask= (and first= where furthest sampling starts).")
        keys = split_key(key)
        masked = self._drawn(batch, keys[0], noise) if mask is None else self._given("mask", mask, batch)
        if not throws:
            if retained is not None:
                raise UserError("retained= has no effect if nothing is thrown: leave it out, or set throw_ratio.")
            decoded = masked
        else:
            num_masked = count_of_each("mask", mask, self.num_masked)
            num_retained = num_masked - self.num_thrown
            if num_retained < 1:
                raise UserError(
                    f"mask has {num_masked} patches per image, of which throw_ratio={self.throw_ratio} throws "
                    f"{self.num_thrown}, so none is left to decode: mask more patches, or choose a lower throw_ratio."
                )
            if retained is None:
                if first is not None:
                    first = checked_first(first, num_masked)
                decoded = choose_retained(masked, num_retained, self.grid, self.retain, key=keys[1], first=first)
            elif (count := count_of_each("retained", retained, num_retained)) == num_retained:
                decoded = self._given("retained", retained, batch) & masked
            else:
                raise UserError(f"retained has {count} patches per image instead of {num_retained}: see throw_ratio.")
        return through_encoder(masked, decoded, self.num_patches - self.num_thrown)

    def _drawn(self, batch: int, key: Any, noise: Float[Array, "b n"] | None) -> Bool[Array, "b p"]:
        blocks = math.prod(self.blocks)
        noise = jax.random.uniform(key, (batch, blocks)) if noise is None else jnp.asarray(noise)
        if noise.shape != (batch, blocks):
            raise UserError(f"noise has shape {noise.shape} instead of {(batch, blocks)}: pass one number per block.")
        rank = jnp.argsort(jnp.argsort(noise, axis=1), axis=1)
        return to_patches(rank >= self.num_visible // math.prod(self.block), self.blocks, self.block)

    def _given(self, name: str, cells: Shaped[Array | np.ndarray, "b ..."], batch: int) -> Bool[Array, "b p"]:
        shapes = ((batch, *self.grid), (batch, self.num_patches))
        if np.shape(cells) not in shapes:
            raise UserError(f"{name} has shape {np.shape(cells)} instead of {shapes[0]} or {shapes[1]}.")
        return jnp.asarray(cells).reshape(batch, self.num_patches) > 0


def check_blocks(grid: tuple[int, int], block: tuple[int, int]) -> None:
    """Checks that a grid of patches is a whole number of blocks.

    Raises:
      UserError: it is not.
    """
    if any(side < 1 or patches % side for patches, side in zip(grid, block, strict=True)):
        raise UserError(
            f"A grid of {grid[0]}x{grid[1]} patches is not a whole number of blocks of {block[0]}x{block[1]}: choose "
            "an img_size that mask_patch divides."
        )


def block_of(mask_patch: tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    """The (rows, columns) of patches in a block.

    >>> block_of((64, 64), (16, 16))
    (4, 4)

    Args:
      mask_patch, patch_size: (height, width) in pixels of a block and of a patch.

    Raises:
      UserError: the block is not a whole number of patches.
    """
    if any(pixels < patch or pixels % patch for pixels, patch in zip(mask_patch, patch_size, strict=True)):
        raise UserError(
            f"mask_patch {mask_patch[0]}x{mask_patch[1]} is not a whole number of patches of "
            f"{patch_size[0]}x{patch_size[1]} pixels: choose a multiple of patch_size."
        )
    return mask_patch[0] // patch_size[0], mask_patch[1] // patch_size[1]


def to_patches(of_blocks: Shaped[Array, "b n"], blocks: tuple[int, int], block: tuple[int, int]) -> Array:
    """Repeats the values of blocks for each of their patches, both in raster order.

    Args:
      blocks: (rows, columns) of blocks.
      block: (rows, columns) of patches in a block.
    """
    grid = of_blocks.reshape(-1, *blocks).repeat(block[0], axis=1).repeat(block[1], axis=2)
    return grid.reshape(len(of_blocks), -1)


def default_mask_patch(img_size: tuple[int, int], patch_size: tuple[int, int], mask_ratio: float) -> tuple[int, int]:
    """The default (height, width) of a masked block in pixels: the largest square up to SimMIM's 32×32 that fits.

    Blocks are whole patches, the image is whole blocks, and the mask ratio, rounded up, leaves one of them visible. If
    there is no such square, a block is one patch.

    >>> default_mask_patch((192, 192), (4, 4), 0.6), default_mask_patch((32, 32), (4, 4), 0.6)
    ((32, 32), (16, 16))
    """
    for side in range(_MASK_PATCH, 0, -1):
        blocks = math.prod(pixels // side for pixels in img_size)
        divides = not any(side % pixels for pixels in patch_size) and not any(pixels % side for pixels in img_size)
        if divides and math.ceil(blocks * mask_ratio) < blocks:
            return side, side
    return patch_size
