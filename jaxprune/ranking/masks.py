"""The masks of pseudo labels: a masker's, in the order of the grid, and what each decoded patch stands for."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxprune.mim.masker import Masks, ascending


class LabelMasks(NamedTuple):
    """What the encoder sees and what the decoder reconstructs, each ascending.

    Attributes:
      ids_keep: visible patches.
      ids_decode: masked patches that enter the decoder.
      sizes: the masked patches that each of these stands for, as it is the nearest to them; None where all are decoded.
      masked: True where a patch is not visible.
    """

    ids_keep: Int[Array, "b k"]
    ids_decode: Int[Array, "b r"]
    sizes: Float[Array, "b r"] | None
    masked: Bool[Array, "b p"]


def label_masks(masks: Masks, grid: tuple[int, int]) -> LabelMasks:
    """Returns the masks that a masker drew as labels need them.

    Args:
      grid: patches down and across.
    """
    visible, present, patches = masks.ids_keep.shape[1], masks.ids_present.shape[1], masks.masked.shape[1]
    ids_decode = ascending(masks.retained, present - visible)
    counted = jax.vmap(lambda masked, ids: stand_for(masked, ids, grid))
    sizes = counted(masks.masked, ids_decode) if present < patches else None
    return LabelMasks(ascending(~masks.masked, visible), ids_decode, sizes, masks.masked)


def stand_for(masked: Bool[Array, "p"], ids_decode: Int[Array, "r"], grid: tuple[int, int]) -> Float[Array, "r"]:
    """Counts the masked patches that each decoded one is nearest to; between several, a patch counts in equal parts.

    >>> stand_for(jnp.array([True, True, False, True]), jnp.array([0, 3]), (1, 4)).tolist()
    [2.0, 1.0]
    """
    place = jnp.stack(jnp.divmod(jnp.arange(masked.size), grid[1]), axis=1)
    distance = jnp.square(place[:, None] - place[ids_decode][None, :]).sum(2)
    nearest = distance == distance.min(1, keepdims=True)
    share = nearest / nearest.sum(1, keepdims=True)
    return jnp.where(masked[:, None], share, 0).sum(0)
