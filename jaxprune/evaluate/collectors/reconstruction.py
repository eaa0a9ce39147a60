"""Evaluation of a pre-training framework on held-out images: its loss, and pictures of reconstructions."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprune.evaluate import Call
from jaxprune.nn.images import normalize
from jaxprune.nn.params import Split, jitted, merge
from jaxprune.preprocessing import Preprocessing
from jaxprune.report.pictures.base import GREY, to_uint8
from jaxprune.report.pictures.reconstruction import reconstruction_rows

# Held-out images always get the same masks, so that evaluations are comparable.
_KEY = 20_22


def held_out_key(index: Any = None) -> jax.Array:
    """Returns the key of the masks of the held-out image `index`, or of the images of a picture."""
    key = jax.random.key(_KEY)
    return key if index is None else jax.random.fold_in(key, index)


def losses(parts: Split, preprocessing: Preprocessing) -> Call:
    """Returns the function of each image's loss and, if the target has one, the mean-colour baseline.

    Its arrays are {"params": the framework's parameters, "fixed": its other arrays}.

    Args:
      parts: the framework.
      preprocessing: of its images.
    """

    def call(arrays: Mapping[str, Any], batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        model = merge(parts.graph, arrays["params"], arrays["fixed"])

        def one(image: jax.Array, index: jax.Array) -> dict[str, jax.Array]:
            loss, aux = model(image[None], key=held_out_key(index))
            colour = model.mean_colour_loss(image[None], aux.masks)
            return {"loss": loss} | ({} if colour is None else {"mean_colour_loss": colour})

        images = normalize(batch["image"], preprocessing.mean, preprocessing.std)
        return jax.vmap(one)(images, batch["index"])

    return call


def with_ratio(averages: Mapping[str, float]) -> dict[str, float]:
    """Adds the ratio to the mean-colour baseline, if there is one, to average losses."""
    if "mean_colour_loss" not in averages:
        return dict(averages)
    return {**averages, "ratio_to_mean_colour": averages["loss"] / averages["mean_colour_loss"]}


def picture(model: Any, preprocessing: Preprocessing, images: np.ndarray) -> np.ndarray:
    """Draws originals, masked images and reconstructions, with thrown cells marked.

    Args:
      model: the framework.
      preprocessing: of its images.
      images: uint8 (b, h, w, 3).
    """
    pixels = normalize(jnp.asarray(images), preprocessing.mean, preprocessing.std)
    record = jitted(model, lambda model, pixels: model.picture(pixels, held_out_key()))(pixels)
    reconstructions = to_uint8(np.asarray(record.images), preprocessing.mean, preprocessing.std)
    for image, cells in zip(reconstructions, np.asarray(record.predicted), strict=True):
        image[np.kron(~cells.reshape(model.grid), np.ones(model.patch_size, bool))] = GREY
    masked, thrown = np.asarray(record.masked), np.asarray(record.thrown)
    thrown = thrown if thrown.any() else None
    beside = model.target.mean_colour(pixels[:1]) is not None
    return reconstruction_rows(images, masked, thrown, reconstructions, model.grid, mean_colours=beside)


def caption(model: Any, images: str) -> str:
    """Returns what a `picture` shows.

    Args:
      model: the framework.
      images: which images they are: "Held-out images".
    """
    note = f" {model.target.picture_note}" if model.target.picture_note else ""
    return (
        f"{images}. Masked patches, which the encoder does not see, are grey. Only they are reconstructed; visible "
        "patches are those of the image. In the last column the thrown patches are marked, which do not enter the "
        f"decoder, where a framework has some.{note}"
    )


def one_per_class(batches: Iterable[Mapping[str, np.ndarray]], count: int) -> np.ndarray:
    """Returns `count` images for pictures, of as many classes as there are, in their order; images without one differ.

    Args:
      batches: with `image`, `label` and `index`.
      count: maximum number of images.
    """
    images: dict[int, tuple[bool, np.ndarray]] = {}
    classes = set()
    for batch in batches:
        labels = np.asarray(batch["label"])
        for image, label, index in zip(batch["image"], labels, np.asarray(batch["index"]).tolist(), strict=True):
            classified = label.ndim == 0 and label >= 0
            images.setdefault(index, (classified and int(label) in classes, image))
            classes |= {int(label)} if classified else set()
    # The sort is stable: first images of a class, then others.
    return np.stack([image for _, image in sorted(images.values(), key=lambda pair: pair[0])[:count]])
