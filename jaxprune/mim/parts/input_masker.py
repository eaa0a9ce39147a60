"""Patches that a student does not see, and that nothing decodes: none, or a fixed share."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from jaxprune.errors import UserError, unknown
from jaxprune.mim.parts.masker import RETAIN, Masker, Masks, ascending, choose_retained
from jaxprune.ops.patch_sampling import checked_first, num_thrown


@dataclasses.dataclass(frozen=True)
class InputMasker(Masker):
    """Throws patches before the encoder; nothing that is masked is decoded.

    >>> masker = InputMasker((14, 14), throw_ratio=0.5)
    >>> masker.num_visible, masker.num_retained
    (98, 0)

    Args:
      grid: patches down and across.
      throw_ratio: fraction of the patches that the encoder does not see.
      retain: how the others are chosen: "random", or "furthest" point sampling from a random patch. As that chooses
        from the whole grid, there are only as many patterns as patches, and corners are nearly always seen.

    Raises:
      UserError: the ratio leaves nothing to see.
    """

    grid: tuple[int, int]
    throw_ratio: float = 0.0
    retain: str = "random"

    def __post_init__(self):
        if self.retain not in RETAIN:
            raise unknown("way to retain tokens", self.retain, RETAIN)
        if self.num_visible < 1:
            raise UserError(
                f"throw_ratio={self.throw_ratio} leaves none of {self.num_patches} patches to see: choose a lower one."
            )

    @property
    def num_visible(self) -> int:
        return self.num_patches - num_thrown(self.num_patches, self.throw_ratio)

    @property
    def num_retained(self) -> int:
        return 0

    def draw(self, batch: int, *, key: PRNGKeyArray | None = None, first: Int[Array, "b"] | None = None) -> Masks:
        """Draws the masks of `batch` images; visible patches are in raster order.

        Args:
          key: draws what is not passed; None if nothing is thrown, or with `first`.
          first: the patch where furthest point sampling starts.

        Raises:
          UserError: there are neither random numbers nor a key.
        """
        everything = jnp.ones((batch, self.num_patches), bool)
        if self.num_masked == 0:
            ids = jnp.broadcast_to(jnp.arange(self.num_patches, dtype=jnp.int32)[None], everything.shape)
            return Masks(ids, ids, ~everything, ~everything, ids)
        if key is None and (first is None or self.retain == "random"):
            raise UserError("Throwing is random: pass key=, or first= where furthest sampling starts.")
        start: Any = None if first is None else checked_first(first, self.num_patches)
        visible = choose_retained(everything, self.num_visible, self.grid, self.retain, key=key, first=start)
        order = ascending(visible, self.num_patches)
        ids = order[:, : self.num_visible]
        ids_restore = jnp.argsort(order, axis=1).astype(jnp.int32)
        return Masks(ids, ids_restore, ~visible, jnp.zeros_like(visible), ids)
