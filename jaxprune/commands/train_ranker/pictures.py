"""Pictures of a ranker's scores, and of the reconstructions behind its labels."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprune.evaluate.collectors.reconstruction import held_out_key
from jaxprune.mim import RandomMasker
from jaxprune.nn.images import normalize
from jaxprune.nn.params import jitted
from jaxprune.ops.patches import patchify, unpatchify
from jaxprune.preprocessing import Preprocessing
from jaxprune.ranking import label_masks
from jaxprune.ranking.labels import reconstructions
from jaxprune.report.pictures.base import to_uint8
from jaxprune.report.pictures.heatmap import heatmap
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.marks import outline_patches
from jaxprune.report.pictures.text import label

_RED = (214, 39, 40)


def score_maps(ranker: Any, preprocessing: Preprocessing, images: np.ndarray) -> np.ndarray:
    """Draws each image above the scores of its patches, dark to bright.

    Args:
      ranker: the ranker, run on whole images.
      preprocessing: of its images.
      images: uint8 (b, h, w, 3).
    """
    pixels = normalize(jnp.asarray(images), preprocessing.mean, preprocessing.std)
    scores = np.asarray(jitted(ranker, lambda ranker, x: ranker.scores(x))(pixels)).reshape(-1, *ranker.grid)
    enlarged = [upscale(image) for image in images]
    return tile(
        [np.concatenate([image, heatmap(image, map_)]) for image, map_ in zip(enlarged, scores, strict=True)], 8
    )


def removals(framework: Any, preprocessing: Preprocessing, images: np.ndarray, mask_ratio: float) -> np.ndarray:
    """Draws the reconstructions that labels with the default options compare, for each image (LTRP, Fig. 13).

    From left to right: the image, its reconstruction from the visible patches, the two reconstructions that change most
    when a visible patch (red) is removed, and the one that changes least.

    Args:
      framework: the autoencoder that makes the labels.
      preprocessing: of its images.
      images: uint8 (b, h, w, 3).
      mask_ratio: of the labels.
    """

    def compared(framework: Any, pixels: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        masker = RandomMasker(framework.grid, mask_ratio)
        masks = label_masks(masker.draw(len(pixels), key=held_out_key()), framework.grid)
        restored = reconstructions(framework, pixels, masks)
        order = jnp.argsort(-restored.change, axis=1, stable=True)
        # With two visible patches the second is also the last.
        patches = jnp.concatenate([order[:, :2], order[:, -1:]], axis=1)
        removed = jnp.take_along_axis(restored.removed, patches[:, :, None, None], axis=1)
        rows = jnp.concatenate([restored.anchor[:, None], removed], axis=1)
        # Visible patches are copied from the image.
        rows = jnp.where(masks.masked[:, None, :, None], rows, patchify(pixels, framework.patch_size)[:, None])
        at_patches = lambda values: jnp.take_along_axis(values, patches, axis=1)
        return rows, at_patches(masks.ids_keep), at_patches(restored.change)

    mean, std = preprocessing.mean, preprocessing.std
    results = jitted(framework, compared)(normalize(jnp.asarray(images), mean, std))
    cells = []
    for image, rows, patches, change in zip(images, *jax.tree.map(np.asarray, results), strict=True):
        restored = np.asarray(unpatchify(jnp.asarray(rows), framework.patch_size, framework.grid))
        restored = [upscale(picture) for picture in to_uint8(restored, mean, std)]
        cells += [label(upscale(image), "image"), label(restored[0], "from the visible patches")]
        for picture, patch, amount in zip(restored[1:], patches, change, strict=True):
            is_removed = np.arange(framework.num_patches) == patch
            cells.append(label(outline_patches(picture, is_removed, framework.grid, _RED), f"changed by {amount:.3f}"))
    return tile(cells, 5)
