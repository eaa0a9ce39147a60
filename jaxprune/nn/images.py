"""What networks ask of the images they are called with."""

from typing import Any

import jax.numpy as jnp

from jaxprune.errors import UserError


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
        raise UserError(
            f"Images of shape {tuple(images.shape)} have {len(images.shape)} dimensions, and the network reads batches "
            f"with {ndim}, (batch, height, width, channels): add the batch by images[None]."
        )
    dtype = images.dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise UserError(
            f"A network reads normalised images of a floating-point dtype, and these are {dtype}: prepare pictures by "
            "jaxprune.data.load_images(pictures, model.preprocessing)."
        )
