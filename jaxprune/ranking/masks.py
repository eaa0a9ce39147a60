"""The masks of pseudo labels: a masker's, in grid order, and the number of patches that each decoded one represents."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxprune.mim.parts.masker import Masks, ascending


class LabelMasks(NamedTuple):
    """The patches for the encoder and for the decoder, each ascending.

    Attributes:
      ids_keep: visible patches.
      ids_decode: masked patches that enter the decoder.
      sizes: number of masked patches that each decoded patch represents, as their nearest one; None if all are decoded.
      masked: True where a patch is not visible.
    """

    ids_keep: Int[Array, "b k"]
    ids_decode: Int[Array, "b r"]
    sizes: Float[Array, "b r"] | None
    masked: Bool[Array, "b p"]


def label_masks(masks: Masks, grid: tuple[int, int]) -> LabelMasks:
    """Converts a masker's masks to those of labels.

    Args:
      grid: patches down and across.
    """
    visible, present, patches = masks.ids_keep.shape[1], masks.ids_present.shape[1], masks.masked.shape[1]
    ids_decode = ascending(masks.retained, present - visible)
    counted = jax.vmap(lambda masked, ids: stand_for(masked, ids, grid))
    sizes = counted(masks.masked, ids_decode) if present < patches else None
    return LabelMasks(ascending(~masks.masked, visible), ids_decode, sizes, masks.masked)


def stand_for(masked: Bool[Array, "p"], ids_decode: Int[Array, "r"], grid: tuple[int, int]) -> Float[Array, "r"]:
    """Counts the masked patches that each decoded one is nearest to; ties are split equally.

    >>> stand_for(jnp.array([True, True, False, True]), jnp.array([0, 3]), (1, 4)).tolist()
    [2.0, 1.0]
    """
    place = jnp.stack(jnp.divmod(jnp.arange(masked.size), grid[1]), axis=1)
    distance = jnp.square(place[:, None] - place[ids_decode][None, :]).sum(2)
    nearest = distance == distance.min(1, keepdims=True)
    share = nearest / nearest.sum(1, keepdims=True)
    return jnp.where(masked[:, None], share, 0).sum(0)
