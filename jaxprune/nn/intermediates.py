"""Helpers of timm's `forward_intermediates`: selection and layout of feature maps."""

from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError, quoted
from jaxprune.nn.site import Site
from jaxprune.ops.unmerge import unmerge

OUTPUT_FORMATS = ("NHWC", "NCHW", "NLC")


def intermediate_indices(indices: int | np.integer | Sequence[int] | None, count: int) -> list[int]:
    """Resolves timm's `indices` into `count` intermediates, in network order.

    Raises:
      UserError: an index is out of range.
    """
    if indices is None:
        return list(range(count))
    if not isinstance(indices, (int, np.integer)) and (
        isinstance(indices, str)
        or not isinstance(indices, Iterable)
        or not all(isinstance(index, (int, np.integer)) for index in indices)
    ):
        raise UserError(f"indices={quoted(indices)} are not whole numbers: use an int, or several such as (3, 6, 9).")
    if isinstance(indices, (int, np.integer)):
        chosen_indices = list(range(count - indices, count)) if 0 < indices <= count else []
    else:
        chosen_indices = [int(i) for i in indices]
    if not chosen_indices or not all(-count <= index < count for index in chosen_indices):
        raise UserError(
            f"indices={indices} is out of range for a network with {count} intermediates: use numbers from "
            f"{-count} to {count - 1}, or an int n from 1 to {count} for the last n."
        )
    return sorted({index % count for index in chosen_indices})


def dense_map(x: Float[Array, "b n d"], assign: Int[Array, "b p"] | None, site: Site, output_fmt: str) -> Array:
    """Lays out the tokens after the prefix, one per patch, in one of `OUTPUT_FORMATS`.

    Args:
      assign: the row that holds each patch; None if every row is a patch.
    """
    rows = x[:, site.num_prefix_tokens :]
    patches = rows if assign is None else unmerge(rows, assign)
    if output_fmt == "NLC":
        return patches
    maps = patches.reshape(patches.shape[0], *site.grid, patches.shape[2])
    return maps if output_fmt == "NHWC" else jnp.moveaxis(maps, -1, 1)
