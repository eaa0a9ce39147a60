"""Windows of a map (Liu et al., 2021), shifted or not, and the relative offsets inside them."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

# The mask value between regions that a shift brings into one window, as published.
APART = -100.0


class Windows(NamedTuple):
    """The partition of a map into windows; plain values.

    Attributes:
      grid: size of the map, (rows, columns).
      size: size of a window, at most that of the grid.
      shift: how far the map is rolled up and left before it is cut.
    """

    grid: tuple[int, int]
    size: tuple[int, int]
    shift: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, grid: tuple[int, int], size: tuple[int, int], *, shifted: bool) -> "Windows":
        """Cuts a grid into windows of `size`; a side no longer than a window is one window, without a shift."""
        window = (min(grid[0], size[0]), min(grid[1], size[1]))
        shift = [side // 2 if shifted and have > cut else 0 for side, have, cut in zip(size, grid, window, strict=True)]
        return cls(grid, window, (shift[0], shift[1]))

    @property
    def counts(self) -> tuple[int, int]:
        """(rows, columns) of windows; the last ones may extend beyond the map."""
        return -(-self.grid[0] // self.size[0]), -(-self.grid[1] // self.size[1])

    def filled_up(self) -> "Windows":
        """The same windows on a map padded at the bottom and right to whole windows."""
        (down, across), (height, width) = self.counts, self.size
        return self._replace(grid=(down * height, across * width))

    def cut(
        self, values: Shaped[Array, "b h n e"], fill: Float[Array, "h e"] | None = None
    ) -> Shaped[Array, "w h m e"]:
        """Rearranges rows of a map from raster order into windows, image by image.

        Args:
          fill: padding beyond the map; zeros by default.
        """
        b, h, _, e = values.shape
        (rows, columns), (down, across), (height, width) = self.grid, self.counts, self.size
        maps = jnp.roll(values.reshape(b, h, rows, columns, e), (-self.shift[0], -self.shift[1]), (2, 3))
        below, right = down * height - rows, across * width - columns
        if below or right:
            maps = jnp.pad(maps, ((0, 0), (0, 0), (0, below), (0, right), (0, 0)))
            if fill is not None:
                inside = (np.arange(down * height) < rows)[:, None] & (np.arange(across * width) < columns)[None]
                maps = jnp.where(inside[None, None, :, :, None], maps, fill[None, :, None, None].astype(maps.dtype))
        cells = maps.reshape(b, h, down, height, across, width, e).transpose(0, 2, 4, 1, 3, 5, 6)
        return cells.reshape(b * down * across, h, height * width, e)

    def join(self, values: Shaped[Array, "w h m e"]) -> Shaped[Array, "b h n e"]:
        """The inverse of `cut`."""
        _, h, _, e = values.shape
        (rows, columns), (down, across), (height, width) = self.grid, self.counts, self.size
        cells = values.reshape(-1, down, across, h, height, width, e).transpose(0, 3, 1, 4, 2, 5, 6)
        maps = cells.reshape(-1, h, down * height, across * width, e)[:, :, :rows, :columns]
        return jnp.roll(maps, self.shift, (2, 3)).reshape(-1, h, rows * columns, e)

    def shift_mask(self) -> Float[np.ndarray, "w m m"] | None:
        """The mask added to logits between rows of different regions in one window; None without a shift."""
        if not any(self.shift):
            return None
        (down, across), (height, width) = self.counts, self.size
        part = np.zeros((down * height, across * width), np.int32)
        ends = [
            (slice(0, -side), slice(-side, -shift), slice(-shift, None))
            for side, shift in zip(self.size, self.shift, strict=True)
        ]
        for row, vertical in enumerate(ends[0]):
            for column, horizontal in enumerate(ends[1]):
                part[vertical, horizontal] = 3 * row + column
        cells = part.reshape(down, height, across, width).transpose(0, 2, 1, 3).reshape(-1, height * width)
        return np.where(cells[:, :, None] == cells[:, None, :], 0.0, APART).astype(np.float32)

    def offsets(self) -> Int[np.ndarray, "m m"]:
        """The index of each pair's offset in the table of all offsets, rows first."""
        places = np.stack(np.unravel_index(np.arange(math.prod(self.size)), self.size), axis=1)
        return self.offsets_between(places[None])[0]

    def offsets_between(self, places: Int[Any, "w k 2"]) -> Int[Any, "w k k"]:
        """The same for rows at any places of their window, (row, column)."""
        height, width = self.size
        largest = np.asarray([height - 1, width - 1], places.dtype)
        offsets = places[:, :, None] - places[:, None] + largest[None, None, None]
        return offsets[..., 0] * (2 * width - 1) + offsets[..., 1]
