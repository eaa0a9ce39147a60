"""Augmentation on the device: inside jit, from explicit keys, with static shapes.

Constants are timm's, and so is the order: erasing and mixing come after normalisation. Images are NHWC.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer, PRNGKeyArray, Shaped, UInt8

from jaxprune.nn.images import normalize
from jaxprune.preprocessing import IMAGENET_MEAN, IMAGENET_STD


def augment(
    key: PRNGKeyArray,
    images: UInt8[Array, "b H W c"],
    labels: Int[Array, "b"] | Float[Array, "b num_classes"],
    *,
    num_classes: int,
    flip: bool = True,
    erasing: float = 0.0,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    label_smoothing: float = 0.0,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> tuple[Float[Array, "b H W c"], Float[Array, "b num_classes"]]:
    """Turns a batch of pixels into training input for a classifier: float32 images and soft targets.

    Args:
      key: drives every draw.
      images: pixels, 0 to 255.
      labels: class indices, or for each class whether it is in the image.
      num_classes: width of the targets.
      flip: flip half of the images left to right.
      erasing: probability of erasing a rectangle of an image.
      mixup, cutmix: their alphas; 0 is off. If both are on, each batch gets one of them.
      label_smoothing: mass spread over all classes.
      mean, std: normalisation for pixels in [0, 1].
    """
    flip_key, erase_key, mix_key = jax.random.split(key, 3)
    images = normalize(images, mean, std)
    if flip:
        images = random_flip(flip_key, images)
    if erasing:
        images = random_erasing(erase_key, images, erasing)
    return mixup_cutmix(
        mix_key, images, labels, mixup, cutmix, label_smoothing=label_smoothing, num_classes=num_classes
    )


def random_flip(key: PRNGKeyArray, images: Float[Array, "b H W c"]) -> Float[Array, "b H W c"]:
    """Flips each image left to right with probability one half."""
    return flipped(jax.random.bernoulli(key, 0.5, (images.shape[0],)), images)


def flipped(flip: Bool[Array, "b"], pictures: Shaped[Array, "b H W *c"]) -> Shaped[Array, "b H W *c"]:
    """Flips some images, or their maps, left to right.

    Args:
      flip: which ones.
    """
    return jnp.where(flip.reshape(-1, *(1,) * (pictures.ndim - 1)), pictures[:, :, ::-1], pictures)


def random_erasing(
    key: PRNGKeyArray,
    images: Float[Array, "b H W c"],
    prob: float,
    area: tuple[float, float] = (0.02, 1 / 3),
    min_aspect: float = 0.3,
) -> Float[Array, "b H W c"]:
    """Fills one random rectangle of an image with unit normal noise, with probability `prob` (timm's "pixel" mode).

    Args:
      key: drives every draw.
      images: normalised images.
      prob: probability for each image.
      area: smallest and largest fraction of the image's area.
      min_aspect: the ratio of height to width is log-uniform between this and its inverse.
    """
    b, height, width, _ = images.shape
    box_key, noise_key = jax.random.split(key)
    draws = jax.random.uniform(box_key, (b, 23))
    boxes = jax.vmap(lambda u: _erasing_box(u, height, width, prob, area, min_aspect))(draws)
    inside = jax.vmap(lambda box: _inside(box, height, width))(boxes)
    noise = jax.random.normal(noise_key, images.shape, images.dtype)
    return jnp.where(inside[..., None], noise, images)


def mixup_cutmix(
    key: PRNGKeyArray,
    images: Float[Array, "b H W c"],
    labels: Int[Array, "b"] | Float[Array, "b num_classes"],
    mixup_alpha: float,
    cutmix_alpha: float,
    *,
    num_classes: int,
    prob: float = 1.0,
    switch_prob: float = 0.5,
    label_smoothing: float = 0.1,
) -> tuple[Float[Array, "b H W c"], Float[Array, "b num_classes"]]:
    """Mixes every image with its partner in the reversed batch, with one weight per batch (timm's "batch" mode).

    Args:
      key: drives every draw.
      images: normalised images.
      labels: classes.
      mixup_alpha, cutmix_alpha: parameters of the Beta distribution of the weight; 0 is off.
      num_classes: width of the targets.
      prob: probability of mixing at all.
      switch_prob: probability of CutMix if both are on.
      label_smoothing: mass spread over all classes.

    Returns:
      (images, targets), with targets weighted by the fraction of pixels that each image keeps.
    """
    if not (mixup_alpha or cutmix_alpha):
        return images, mixup_target(labels, num_classes, 1.0, label_smoothing)
    height, width = images.shape[1:3]
    lam_key, draw_key = jax.random.split(key)
    use, switch, *centre = jax.random.uniform(draw_key, (4,))
    cut = switch < (switch_prob if mixup_alpha and cutmix_alpha else float(bool(cutmix_alpha)))
    alpha = jnp.where(cut, float(cutmix_alpha), float(mixup_alpha))
    lam = jnp.where(use < prob, jax.random.beta(lam_key, alpha, alpha), 1.0)
    mixed = mix_images(images, lam)
    if cutmix_alpha:
        box = cutmix_box(lam, centre, height, width)
        mixed = jnp.where(cut, cutmix_images(images, box), mixed)
        lam = jnp.where(cut, cutmix_lam(box, height, width), lam)
    return mixed, mixup_target(labels, num_classes, lam, label_smoothing)


def mixup_target(
    labels: Int[Array, "b"] | Float[Array, "b num_classes"],
    num_classes: int,
    lam: float | Float[Array, ""],
    smoothing: float = 0.0,
) -> Float[Array, "b num_classes"]:
    """Mixes smoothed one-hot targets with those of the reversed batch: lam · own + (1 - lam) · partner.

    Smoothing gives 1 - s + s / num_classes to the label and s / num_classes to every other class.
    """
    present = jax.nn.one_hot(labels, num_classes) if labels.ndim == 1 else labels
    target = present * (1.0 - smoothing) + smoothing / num_classes
    return target * lam + target[::-1] * (1.0 - lam)


def mix_images(images: Float[Array, "b H W c"], lam: float | Float[Array, ""]) -> Float[Array, "b H W c"]:
    """Blends every image with its partner in the reversed batch: lam · own + (1 - lam) · partner."""
    return images * lam + images[::-1] * (1.0 - lam)


def cutmix_images(images: Float[Array, "b H W c"], box: Integer[Array | np.ndarray, "4"]) -> Float[Array, "b H W c"]:
    """Copies the partner's pixels into `box` = (top, bottom, left, right), ends excluded."""
    inside = _inside(box, *images.shape[1:3])
    return jnp.where(inside[None, :, :, None], images[::-1], images)


def cutmix_box(
    lam: Float[Array, ""], centre: Sequence[float | Float[Array, ""]], height: int, width: int
) -> Integer[Array, "4"]:
    """Returns the box of about (1 - lam) of the image around `centre` (fractions of its sides), cut at the border."""
    box = []
    for side, at in zip((height, width), centre, strict=True):
        half = jnp.floor(side * jnp.sqrt(1.0 - lam)).astype(jnp.int32) // 2
        middle = jnp.floor(at * side).astype(jnp.int32)
        box += [jnp.clip(middle - half, 0, side), jnp.clip(middle + half, 0, side)]
    return jnp.stack(box)


def cutmix_lam(box: Integer[Array | np.ndarray, "4"], height: int, width: int) -> Float[Array, ""]:
    """Returns the fraction of the image outside `box`."""
    return 1.0 - (box[1] - box[0]) * (box[3] - box[2]) / jnp.float32(height * width)


def _erasing_box(
    draws: Array, height: int, width: int, prob: float, area: tuple[float, float], min_aspect: float
) -> Array:
    """The rectangle (top, bottom, left, right) to erase, from 23 uniform draws; an empty one if nothing is erased.

    The first of ten tries that fits inside the image is used; if none does, nothing is erased.
    """
    pixels = (area[0] + (area[1] - area[0]) * draws[:10]) * (height * width)
    aspect = jnp.exp(math.log(min_aspect) * (1.0 - 2.0 * draws[10:20]))
    heights, widths = jnp.round(jnp.sqrt(pixels * aspect)), jnp.round(jnp.sqrt(pixels / aspect))
    fits = (heights < height) & (widths < width)
    first_fit = jnp.argmax(fits)
    erased = fits[first_fit] & (draws[20] < prob)
    box = []
    for side, size, draw in ((height, heights[first_fit], draws[21]), (width, widths[first_fit], draws[22])):
        low = jnp.floor(draw * (side - size + 1))
        box += [low, jnp.where(erased, low + size, low)]
    return jnp.stack(box)


def _inside(box: Array | np.ndarray, height: int, width: int) -> Array:
    """True inside the (top, bottom, left, right) box of a (height, width) map."""
    row, column = jnp.arange(height), jnp.arange(width)
    rows = (row >= box[0]) & (row < box[1])
    columns = (column >= box[2]) & (column < box[3])
    return rows[:, None] & columns[None, :]
