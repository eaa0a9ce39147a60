"""What a network computes with: its normalised input images, and its dtype."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Real

from jaxprune.errors import UserError, quoted
from jaxprune.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Normalisation, Preprocessing, trained_on


def require_float(images: Any, ndim: int | None = None) -> None:
    """Checks, at trace time, that images have a floating-point dtype, as normalised images do.

    Args:
      images: the input of a network.
      ndim: required number of dimensions, if any.

    Raises:
      UserError: they are not an array, have an integer dtype, as decoded pictures have, or are not a batch.
    """
    if not (hasattr(images, "dtype") and hasattr(images, "shape")):
        kind = "None" if images is None else f"of type {type(images).__name__}"
        raise UserError(
            f"A network reads an array of images (batch, height, width, channels), and these are {kind}: "
            f"stack them with "
            "numpy.stack(images), or read pictures with jaxprune.data.load_images(pictures, model.preprocessing)."
        )
    if ndim is not None and len(images.shape) != ndim:
        kind, axes = ("Clips", "batch, frames, height, width") if ndim == 5 else ("Images", "batch, height, width")
        raise UserError(
            f"{kind} of shape {tuple(images.shape)} have {len(images.shape)} dimensions, but the network reads batches "
            f"with {ndim}, ({axes}, channels): add a batch axis with {kind.lower()}[None]."
        )
    if images.shape and not images.shape[0]:
        raise UserError("The batch holds no images: give at least one.")
    dtype = images.dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise UserError(
            f"A network reads normalised images of a floating-point dtype, but these are {dtype}: prepare "
            f"pictures with "
            "jaxprune.data.load_images(pictures, model.preprocessing)."
        )


def require_buildable(dtype: Any, rngs: Any) -> None:
    """Checks the compute dtype of a network, and the random numbers of its initial parameters.

    Numbers cut off to integers would be zeros without a word.

    Raises:
      UserError: it is not a floating-point dtype, or there are no random numbers.
    """
    if not isinstance(rngs, nnx.Rngs):
        raise UserError(f"rngs={quoted(rngs)} are not random numbers: pass rngs=nnx.Rngs(0).")
    try:
        right = dtype is None or jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        right = False
    if not right:
        raise UserError(
            f"dtype={quoted(dtype)} is not a floating-point type, which networks compute with: use float32, "
            "bfloat16 or float16."
        )


def normalize(
    images: Real[Array | np.ndarray, "b *sides c"],
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> Float[Array, "b *sides c"]:
    """Maps pixels, of images or of clips, to float32: (x / 255 - mean) / std, channel by channel."""
    return of_unit(jnp.asarray(images, jnp.float32) / 255.0, mean, std)


def as_input(images: Real[Array | np.ndarray, "b *sides c"], record: Preprocessing) -> Float[Array, "b *sides c"]:
    """Returns images, or clips, as a network reads them: pixels are normalised, floating-point images are already.

    >>> as_input(np.full((1, 2, 2, 3), 255, np.uint8), Preprocessing((2, 2), mean=(0.5,) * 3, std=(0.5,) * 3)).max()
    Array(1., dtype=float32)

    Args:
      images: pixels from 0 to 255, of an integer dtype; or normalised images.
      record: of the network.
    """
    if jnp.issubdtype(images.dtype, jnp.floating):
        return jnp.asarray(images)
    return normalize(images, record.mean, record.std)


def of_unit(
    images: Float[Array, "b *sides c"], mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD
) -> Float[Array, "b *sides c"]:
    """Maps images from 0 to 1 to (x - mean) / std, channel by channel."""
    if images.shape[-1] != len(mean):
        raise UserError(
            f"Images of {images.shape[-1]} channels do not fit a mean and std of {len(mean)}: give images of as many, "
            "or other statistics."
        )
    lead = (1,) * (images.ndim - 1)
    offset, scale = (jnp.asarray(values, jnp.float32).reshape(*lead, -1) for values in (mean, std))
    return (images - offset) / scale


def renormalized_for(
    network: Any, images: Float[Array, "b *sides c"], normalised: Normalisation | None
) -> Float[Array, "b *sides c"]:
    """Converts images to the normalisation of a network; those of a network that does not say how stay as they are.

    Args:
      network: with its `preprocessing`.
      normalised: the (mean, std) that the images were normalised with; None for those of the network.
    """
    target = trained_on(network)
    return images if normalised is None or target in (None, normalised) else renormalized(images, normalised, target)


def renormalized(
    images: Float[Array, "b *sides c"], normalised: Normalisation, target: Normalisation
) -> Float[Array, "b *sides c"]:
    """Converts images from one normalisation (mean, std) to another."""
    (mean, std), (target_mean, target_std) = normalised, target
    scale = np.asarray(std, np.float64) / np.asarray(target_std)
    shift = (np.asarray(mean, np.float64) - np.asarray(target_mean)) / np.asarray(target_std)
    lead = (1,) * (images.ndim - 1)
    per_channel = lambda values: jnp.asarray(values, images.dtype).reshape(*lead, -1)
    return images * per_channel(scale) + per_channel(shift)
