"""What networks ask of the images they are called with."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.preprocessing import Normalisation


def require_float(images: Any, ndim: int | None = None) -> None:
    """Checks, while a program is traced, that images are normalised ones as far as their dtype shows.

    Args:
      images: what a network is called with.
      ndim: dimensions of the batch, where the network takes no other.

    Raises:
      UserError: they are no array, one of an integer dtype, as decoded pictures are, or no batch.
    """
    if not (hasattr(images, "dtype") and hasattr(images, "shape")):
        kind = "None" if images is None else f"of type {type(images).__name__}"
        raise UserError(
            f"A network reads an array of images (batch, height, width, channels), and these are {kind}: stack them by "
            "numpy.stack(images), or read pictures by jaxprune.data.load_images(pictures, model.preprocessing)."
        )
    if ndim is not None and len(images.shape) != ndim:
        what, axes = ("Clips", "batch, frames, height, width") if ndim == 5 else ("Images", "batch, height, width")
        raise UserError(
            f"{what} of shape {tuple(images.shape)} have {len(images.shape)} dimensions, and the network reads batches "
            f"with {ndim}, ({axes}, channels): add the batch by {what.lower()}[None]."
        )
    dtype = images.dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise UserError(
            f"A network reads normalised images of a floating-point dtype, and these are {dtype}: prepare pictures by "
            "jaxprune.data.load_images(pictures, model.preprocessing)."
        )


def renormalized(
    images: Float[Array, "b *sides c"], normalised: Normalisation, wanted: Normalisation
) -> Float[Array, "b *sides c"]:
    """Images that were normalised with one (mean, std), normalised with another."""
    (mean, std), (own_mean, own_std) = normalised, wanted
    scale = np.asarray(std, np.float64) / np.asarray(own_std)
    shift = (np.asarray(mean, np.float64) - np.asarray(own_mean)) / np.asarray(own_std)
    lead = (1,) * (images.ndim - 1)
    per_channel = lambda values: jnp.asarray(values, images.dtype).reshape(*lead, -1)
    return images * per_channel(scale) + per_channel(shift)
