"""What a plan did with the patches of images, as one picture."""

import math
from typing import Any

import numpy as np

from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing
from jaxprune.report.pictures.base import Picture, to_uint8
from jaxprune.report.pictures.steps_of_plan import steps_of_plan


def plan(
    images: Any,
    aux: Any,
    *,
    grids: tuple[tuple[int, ...], ...] | None = None,
    preprocessing: Preprocessing | None = None,
) -> Picture:
    """Draws a row for each image: the image, then after every step of the plan what became of its patches.

    Dropped patches are grey with a cross; patches merged into one token share a border of one colour.

    >>> import jax; import jaxprune; from flax import nnx; from jaxprune.reduction import Plan, apply
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> images = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    >>> _, aux = apply(model, Plan("topk", keep_rate=0.5, reduction_loc=(1,)))(images)
    >>> picture = plan(images, aux, preprocessing=model.preprocessing)
    >>> picture.dtype, picture.ndim
    (dtype('uint8'), 3)

    `PIL.Image.fromarray(picture).save("plan.png")` writes it.

    Args:
      images: (n, h, w, 3), or clips, (n, frames, h, w, 3): pixels, uint8 or in [0, 1], or as a network reads them.
      aux: the second output of a network under a plan, of the same images in the same order.
      grids: (rows, columns) of the patches at each step, or (layers, rows, columns): `model.step_grids()`. Images do
        without: their patches are taken to be about square.
      preprocessing: the network's, `model.preprocessing`, for the true colours of normalised images; without it they
        are stretched to the range of each image.

    Raises:
      UserError: there is no plan in `aux`, it belongs to other images, or clips come without grids.
    """
    pixels, assign = np.asarray(images), tuple(np.asarray(step) for step in getattr(aux, "assign", ()))
    if not assign:
        raise UserError("This output has no steps of a plan: pass the aux of reduction.apply(model, plan)(images).")
    if pixels.ndim not in (4, 5) or pixels.shape[-1] != 3:
        raise UserError(f"Images are (n, h, w, 3), or clips (n, frames, h, w, 3), and these have {pixels.shape}.")
    if len(assign[0]) != len(pixels):
        raise UserError(f"There are {len(pixels)} images, and aux is of {len(assign[0])}: pass those it comes from.")
    if grids is None and pixels.ndim == 5:
        raise UserError(
            "The grid of a clip does not follow from the number of its tubes: pass grids=model.step_grids()."
        )
    height, width = pixels.shape[-3:-1]
    grids = grids or tuple(_grid(step.shape[1], height / width) for step in assign)
    counts = [step.shape[1] for step in assign]
    if [math.prod(grid) for grid in grids] != counts:
        raise UserError(f"The grids {grids} do not have the {counts} patches of the steps: pass model.step_grids().")
    return steps_of_plan(_as_pixels(pixels, preprocessing), assign, grids)


def _grid(count: int, aspect: float) -> tuple[int, int]:
    """The (rows, columns) of patches that are nearest to squares, in images of height ÷ width `aspect`."""
    divisors = [rows for rows in range(1, count + 1) if count % rows == 0]
    rows = min(divisors, key=lambda rows: abs(math.log(rows * rows / count / aspect)))
    return rows, count // rows


def _as_pixels(images: np.ndarray, preprocessing: Preprocessing | None) -> np.ndarray:
    if np.issubdtype(images.dtype, np.integer):
        return to_uint8(images)
    if preprocessing is not None:
        return to_uint8(images, preprocessing.mean, preprocessing.std)
    if images.min() >= 0 and images.max() <= 1:
        return to_uint8(images)
    inner = tuple(range(1, images.ndim))
    low, high = images.min(inner, keepdims=True), images.max(inner, keepdims=True)
    return to_uint8((images - low) / np.maximum(high - low, 1e-6))
