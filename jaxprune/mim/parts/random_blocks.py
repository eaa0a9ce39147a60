"""Random visible blocks of patches, for masked autoencoders that mask coarser than by the patch (Pixio)."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.mim.parts.block_masker import check_blocks, to_patches
from jaxprune.mim.parts.masker import Masks, RandomMasker
from jaxprune.ops.patch_sampling import num_visible


@dataclasses.dataclass(frozen=True)
class RandomBlocks(RandomMasker):
    """Random visible blocks; masked patches are thrown one by one, as by `RandomMasker`.

    >>> masker = RandomBlocks((16, 16), mask_ratio=0.75, throw_ratio=0.5, block=(4, 4))
    >>> masker.num_visible, masker.num_retained
    (64, 64)

    Args:
      grid, throw_ratio, retain: see `RandomMasker`.
      mask_ratio: fraction of the blocks to mask: of n blocks, int(n · (1 - mask_ratio)) are visible.
      block: (rows, columns) of patches in a block.

    Raises:
      UserError: the grid is not a whole number of blocks, or the ratios leave nothing to see, to mask or to decode.

    References:
      Yang et al., 2025, "In pursuit of pixel supervision for visual pre-training" (Pixio).
    """

    block: tuple[int, int] = (1, 1)

    def __post_init__(self):
        check_blocks(self.grid, self.block)
        super().__post_init__()

    @property
    def blocks(self) -> tuple[int, int]:
        """(rows, columns) of blocks."""
        return self.grid[0] // self.block[0], self.grid[1] // self.block[1]

    @property
    def num_visible(self) -> int:
        return num_visible(math.prod(self.blocks), self.mask_ratio) * math.prod(self.block)

    def draw(
        self,
        batch: int,
        *,
        key: PRNGKeyArray | None = None,
        noise: Float[Array, "b blocks"] | None = None,
        first: Int[Array, "b"] | None = None,
        retained: Bool[Array | np.ndarray, "b ..."] | None = None,
    ) -> Masks:
        """Draws the masks of `batch` images; see `RandomMasker.draw`.

        Args:
          noise: one number per block; the blocks with the smallest ones are visible.
        """
        number, block_noise = math.prod(self.blocks), noise
        if block_noise is None and key is not None:
            block_noise = jax.random.uniform(jax.random.split(key)[0], (batch, number))
        if block_noise is not None and block_noise.shape[1] != number:
            raise UserError(
                f"noise has {block_noise.shape[1]} numbers per image instead of {number}: pass one per block."
            )
        # Sorting is stable, so the patches of a block follow each other in raster order.
        of_patches: Any = None if block_noise is None else to_patches(block_noise, self.blocks, self.block)
        return super().draw(batch, key=key, noise=of_patches, first=first, retained=retained)
