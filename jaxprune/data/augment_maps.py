"""Images and their label maps on the device: flipped together, and normalised with padding that stays 0."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Integer, PRNGKeyArray, Shaped, UInt8

from jaxprune.nn.images import normalize
from jaxprune.preprocessing import IMAGENET_MEAN, IMAGENET_STD


def augment_maps(
    key: PRNGKeyArray,
    images: UInt8[Array, "b H W c"],
    label_maps: Integer[Array, "b H W"],
    extents: Integer[Array, "b 2"],
    *,
    flip: bool = True,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> tuple[Float[Array, "b H W c"], Int[Array, "b H W"]]:
    """Returns training input for a segmentation network: float32 images, and the class of each pixel, int32.

    Args:
      key: drives the flips.
      images: pixels, 0 to 255, padded at the right and at the bottom.
      extents: rows and columns of each image without padding.
      flip: flip half of the images left to right, with their maps; padding stays where it is.
      mean, std: normalisation for pixels in [0, 1].
    """
    if flip:
        flips = jax.random.bernoulli(key, 0.5, (images.shape[0],))
        images, label_maps = (mirrored(flips, pictures, extents[:, 1]) for pictures in (images, label_maps))
    return normalize_padded(images, extents, mean, std), label_maps.astype(jnp.int32)


def mirrored(
    flip: Bool[Array, "b"], pictures: Shaped[Array, "b H W *c"], widths: Integer[Array, "b"]
) -> Shaped[Array, "b H W *c"]:
    """Flips some images, or their maps, left to right, without the padding behind `widths` columns."""
    places = jnp.arange(pictures.shape[2])

    def of_image(picture: Array, width: Array, flipped: Array) -> Array:
        source = jnp.where(flipped & (places < width), width - 1 - places, places)
        return picture[:, source]

    return jax.vmap(of_image)(pictures, widths, flip)


def normalize_padded(
    images: UInt8[Array, "b H W c"],
    extents: Integer[Array, "b 2"],
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> Float[Array, "b H W c"]:
    """Normalises pixels as `nn.images.normalize` does, with 0 in the padding behind `extents`."""
    height, width = images.shape[1:3]
    rows, columns = (jnp.arange(side)[None] < extents[:, axis : axis + 1] for axis, side in enumerate((height, width)))
    inside = rows[:, :, None] & columns[:, None]
    return jnp.where(inside[..., None], normalize(images, mean, std), 0.0)
