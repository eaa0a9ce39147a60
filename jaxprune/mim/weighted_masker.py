"""Masks drawn by weights: what weighs more is more likely masked, or thrown (AMT, Gui et al., 2022)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.mim.masker import Masker, Masks, ascending


@dataclasses.dataclass(frozen=True)
class WeightedMasker(Masker):
    """Draws patches one after the other, without replacement and by their weights.

    The first `num_retained` are masked and decoded, the next are masked and thrown, and the last are visible.

    Args:
      grid: patches down and across.
      num_visible: patches of an image that the encoder sees.
      num_retained: masked patches that enter the decoder.

    Raises:
      UserError: the numbers leave nothing to see or to decode.
    """

    grid: tuple[int, int]
    num_visible: int
    num_retained: int

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
        noise: Float[Array, "b p"] | None = None,
        ids_shuffle: Int[Array, "b p"] | None = None,
        first: Any = None,
    ) -> Masks:
        """Draws the masks of `batch` images; visible patches are in the order of the draw.

        Args:
          key: draws `noise` where it is not passed.
          weights: of the patches, 0 or more; None is the same for all. Those of 0 are drawn last.
          noise: one number in (0, 1) a patch; with equal weights the largest are masked and the least visible.
          ids_shuffle: the patches in the order in which they are drawn, in place of all that.
          first: of no meaning; maskers that choose thrown patches by furthest sampling have it.

        Raises:
          UserError: there is nothing to draw from.
        """
        if ids_shuffle is None:
            if noise is None:
                if key is None:
                    raise UserError("Masking is random: pass key=, noise= or ids_shuffle=.")
                noise = jax.random.uniform(key, (batch, self.num_patches))
            ids_shuffle = weighted_order(jnp.ones_like(noise) if weights is None else weights, noise)
        # Masks have the visible patches first.
        order = jnp.roll(ids_shuffle.astype(jnp.int32), self.num_visible, axis=1)
        ids_restore = jnp.argsort(order, axis=1).astype(jnp.int32)
        masked = ids_restore >= self.num_visible
        retained = masked & (ids_restore < self.num_visible + self.num_retained)
        ids_present = ascending(~masked | retained, self.num_visible + self.num_retained)
        return Masks(order[:, : self.num_visible], ids_restore, masked, retained, ids_present)


def weighted_order(weights: Float[Array, "b p"], noise: Float[Array, "b p"]) -> Int[Array, "b p"]:
    """Orders patches as drawing them by weight without replacement does (Gumbel top-k; Kool et al., 2019).

    Args:
      noise: uniform in (0, 1).
    """
    tiny = jnp.finfo(jnp.float32).tiny
    gumbel = -jnp.log(-jnp.log(jnp.clip(noise.astype(jnp.float32), tiny, 1 - 2**-24)))
    log_weights = jnp.where(weights > 0, jnp.log(jnp.maximum(weights.astype(jnp.float32), tiny)), -jnp.inf)
    return jnp.argsort(-(log_weights + gumbel), axis=1, stable=True).astype(jnp.int32)
