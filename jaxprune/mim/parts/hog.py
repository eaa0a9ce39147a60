"""Histograms of oriented gradients (HOG) as a target, in the versions of LocalMIM and of MaskFeat.

Both compute gradients of every channel with Sobel filters, assign each pixel to the bin of its unsigned orientation,
and scale the histogram of a cell to unit length. MaskFeat weights pixels by a Gaussian window, and its cells are
smaller than a patch.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.mim.parts.target import Target

_LEAST = 1e-12  # smallest norm to divide a histogram by, so that flat cells give zeros


def image_gradients(images: Float[Array, "b H W c"]) -> tuple[Float[Array, "b H W c"], Float[Array, "b H W c"]]:
    """3×3 Sobel gradients (left minus right, top minus bottom) of each channel, with reflected borders."""
    padded = jnp.pad(images.astype(jnp.float32), ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
    across, down = padded[:, :, :-2] - padded[:, :, 2:], padded[:, :-2] - padded[:, 2:]
    return (
        across[:, :-2] + 2 * across[:, 1:-1] + across[:, 2:],
        down[:, :, :-2] + 2 * down[:, :, 1:-1] + down[:, :, 2:],
    )


def gaussian_window(size: int) -> np.ndarray:
    """MaskFeat's window of `size` × `size` weights with sum 1; its standard deviation is half its side."""
    places = np.arange(size) - (size - 1) / 2
    weights = np.exp(-0.5 * (places / (size / 2)) ** 2)
    window = np.outer(weights, weights)
    return (window / window.sum()).astype(np.float32)


def orientation_histograms(
    images: Float[Array, "b H W c"],
    cell: tuple[int, int],
    num_bins: int = 9,
    *,
    window: int | None = None,
    bias: Float[Array, "2"] | None = None,
) -> Float[Array, "b rows columns c bins"]:
    """The mean gradient of each cell by orientation, before scaling to unit length.

    With horizontal gradient gx and vertical gradient gy, a pixel adds its whole magnitude to the bin floor(atan2(gx,
    gy) / π · num_bins) modulo num_bins.

    Args:
      cell: height and width in pixels.
      num_bins: orientations from 0 to π.
      window: side of a Gaussian window, tiled over the image, that weights the magnitudes (MaskFeat); None weights all
        pixels equally.
      bias: numbers added to the horizontal and to the vertical gradients (LocalMIM's `hog_bias`).

    Raises:
      UserError: the image is not a whole number of cells, or of windows.
    """
    b, height, width, channels = images.shape
    for part, sides in (("cells", cell), ("windows", (window or 1, window or 1))):
        if height % sides[0] or width % sides[1]:
            raise UserError(
                f"Images of {height}x{width} pixels are not a whole number of {sides[0]}x{sides[1]} {part} of HOG: "
                f"use images of {-(-height // sides[0]) * sides[0]}x{-(-width // sides[1]) * sides[1]}."
            )
    across, down = image_gradients(images)
    if bias is not None:
        across, down = across + bias[0], down + bias[1]
    magnitude = jnp.sqrt(jnp.square(across) + jnp.square(down))
    if window is not None:
        tiled = np.tile(gaussian_window(window), (height // window, width // window))
        magnitude = magnitude * tiled[None, :, :, None]
    bins = jnp.floor(jnp.arctan2(across, down) / np.float32(math.pi) * num_bins).astype(jnp.int32) % num_bins
    cells = (b, height // cell[0], cell[0], width // cell[1], cell[1], channels, 1)
    in_bin = bins.reshape(cells) == jnp.arange(num_bins).reshape(*(1,) * 6, num_bins)
    return jnp.where(in_bin, magnitude.reshape(cells), 0).mean((2, 4))


def _normalized(histograms: Float[Array, "*lead bins"]) -> Float[Array, "*lead bins"]:
    length = jnp.sqrt(jnp.square(histograms).sum(-1, keepdims=True))
    return histograms / jnp.maximum(length, _LEAST)


def hog_levels(
    images: Float[Array, "b H W c"],
    cells: Sequence[tuple[int, int]],
    num_bins: int = 9,
    biases: Sequence[Float[Array, "2"]] | None = None,
) -> tuple[Float[Array, "b p q"], ...]:
    """LocalMIM's target at several scales: for each cell size, one histogram per channel, concatenated.

    Args:
      cells: (height, width) of the cells in pixels, each a multiple of the previous one.
      biases: of each scale, see `orientation_histograms`.
    """
    images = jax.lax.stop_gradient(images)
    if biases is not None:
        histograms = [
            orientation_histograms(images, cell, num_bins, bias=bias) for cell, bias in zip(cells, biases, strict=True)
        ]
        return tuple(_by_cell(_normalized(of_scale)) for of_scale in histograms)
    finest = cells[0]
    pooled = orientation_histograms(images, finest, num_bins)
    levels = []
    for (height, width), (finer_height, finer_width) in zip(cells, (finest, *cells), strict=False):
        b, rows, columns, *bins = pooled.shape
        down, along = height // finer_height, width // finer_width
        pooled = pooled.reshape(b, rows // down, down, columns // along, along, *bins).mean((2, 4))
        levels.append(_by_cell(_normalized(pooled)))
    return tuple(levels)


def _by_cell(histograms: Float[Array, "b rows columns c bins"]) -> Float[Array, "b p q"]:
    return histograms.reshape(histograms.shape[0], histograms.shape[1] * histograms.shape[2], -1)


@dataclasses.dataclass(frozen=True)
class HOG(Target):
    """Histograms of oriented gradients, with one or several cells per patch.

    The values of a patch are in the order channel, bin, row and column of the cell.

    >>> HOG((16, 16)).size, MaskFeatHOG((16, 16)).size
    (27, 108)

    Args:
      patch_size: (height, width) of a patch in pixels.
      cell: (height, width) of a cell in pixels; None means the whole patch, as in LocalMIM.
      num_bins: orientations from 0 to π.
      window: see `orientation_histograms`.
      in_chans: channels of the images.

    Raises:
      UserError: a patch is not a whole number of cells.

    References:
      Wang et al., 2023, "Masked image modeling with local multi-scale reconstruction" (LocalMIM).
    """

    patch_size: tuple[int, int]
    cell: tuple[int, int] | None = None
    num_bins: int = 9
    window: int | None = None
    in_chans: int = 3
    name = "histograms of oriented gradients"

    def __post_init__(self):
        (height, width), (rows, columns) = self.patch_size, self.cell_size
        if height % rows or width % columns:
            raise UserError(
                f"Patches of {height}x{width} pixels are not a whole number of cells of {rows}x{columns}: leave out "
                "cell, or use one that divides both sides."
            )
        if self.num_bins < 1:
            raise UserError(f"num_bins={self.num_bins} leaves no orientation: use 9.")

    @property
    def cell_size(self) -> tuple[int, int]:
        """(height, width) of a cell in pixels."""
        return self.cell or self.patch_size

    @property
    def cells(self) -> tuple[int, int]:
        """(rows, columns) of cells in a patch."""
        (height, width), (rows, columns) = self.patch_size, self.cell_size
        return height // rows, width // columns

    @property
    def size(self) -> int:
        return math.prod(self.cells) * self.in_chans * self.num_bins

    def __call__(self, images: Float[Array, "b H W c"]) -> Float[Array, "b p q"]:
        histograms = _normalized(
            orientation_histograms(jax.lax.stop_gradient(images), self.cell_size, self.num_bins, window=self.window)
        )
        b, rows, columns, channels, bins = histograms.shape
        down, along = self.cells
        patches = histograms.reshape(b, rows // down, down, columns // along, along, channels, bins)
        return patches.transpose(0, 1, 3, 5, 6, 2, 4).reshape(b, rows // down * (columns // along), self.size)

    def to_pixels(self, pred: Float[Array, "b p q"], images: Float[Array, "b H W c"]) -> Float[Array, "b p v"]:
        """Draws each histogram as strokes along the edges, from the image's darkest to its lightest value.

        The brightness of a stroke is the part of the cell's gradient, averaged over channels, perpendicular to it.
        """
        b, p, _ = pred.shape
        (down, along), (height, width) = self.cells, self.cell_size
        shape = (b, p, self.in_chans, self.num_bins, down, along)
        strength = jnp.clip(pred.astype(jnp.float32).reshape(shape).mean(2), 0, 1)
        brightness = jnp.einsum("bpnij,nyx->bpiyjx", strength, jnp.asarray(strokes((height, width), self.num_bins)))
        brightness = jnp.clip(brightness, 0, 1).reshape(b, p, down * height * along * width, 1)
        dark, light = (limit(images, axis=(1, 2, 3)).reshape(b, 1, 1, 1) for limit in (jnp.min, jnp.max))
        grey = dark + (light - dark) * brightness
        return jnp.broadcast_to(grey, (*grey.shape[:3], self.in_chans)).reshape(b, p, -1)


def strokes(cell: tuple[int, int], num_bins: int) -> np.ndarray:
    """A picture of each bin: a line through the middle of the cell, perpendicular to the gradients of the bin."""
    angles = (np.arange(num_bins)[:, None, None] + 0.5) * math.pi / num_bins
    rows, columns = (np.arange(side) - (side - 1) / 2 for side in cell)
    # atan2(gx, gy) measures the angle from the downward axis.
    distance = np.abs(np.sin(angles) * columns[None, None, :] + np.cos(angles) * rows[None, :, None])
    return np.clip(max(1.5, 1 + min(cell) / 32) - distance, 0, 1).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class MaskFeatHOG(HOG):
    """MaskFeat's histograms: 8×8 cells under a Gaussian window, concatenated over the cells of a patch.

    Args:
      patch_size, cell, num_bins, window, in_chans: see `HOG`.

    References:
      Wei et al., 2022, "Masked feature prediction for self-supervised visual pre-training".
    """

    cell: tuple[int, int] | None = (8, 8)
    window: int | None = 16
