"""Features of several depths as maps: which ones, and how they are laid out (timm's `forward_intermediates`)."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn.site import Site
from jaxprune.ops.tokens import unmerge

OUTPUT_FORMATS = ("NHWC", "NCHW", "NLC")


def intermediate_indices(indices: int | np.integer | Sequence[int] | None, count: int) -> list[int]:
    """The numbers of `count` intermediates that timm's `indices` stand for, in the order of the network.

    Raises:
      UserError: there are not so many.
    """
    if indices is None:
        return list(range(count))
    if isinstance(indices, (int, np.integer)):
        wanted = list(range(count - indices, count)) if 0 < indices <= count else []
    else:
        wanted = [int(i) for i in indices]
    if not wanted or not all(-count <= index < count for index in wanted):
        raise UserError(
            f"indices={indices} does not name intermediates of this network, which has {count}: use numbers from "
            f"{-count} to {count - 1}, or an int from 1 to {count} for the last so many."
        )
    return sorted({index % count for index in wanted})


def dense_map(x: Float[Array, "b n d"], assign: Int[Array, "b p"] | None, site: Site, output_fmt: str) -> Array:
    """The tokens behind the prefix, one for every patch, in one of `OUTPUT_FORMATS`.

    Args:
      assign: for each patch the row that holds it; None where every row is a patch.
    """
    rows = x[:, site.num_prefix_tokens :]
    patches = rows if assign is None else unmerge(rows, assign)
    if output_fmt == "NLC":
        return patches
    maps = patches.reshape(patches.shape[0], *site.grid, patches.shape[2])
    return maps if output_fmt == "NHWC" else jnp.moveaxis(maps, -1, 1)
