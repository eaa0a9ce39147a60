"""Cells of a map: the intersections of its plain and its shifted windows, inside which rows can merge.

Every second block shifts its windows of side m by s, which cuts the plain windows at row s and at column s. The four
parts of a window are its cells, with sides s and m - s, which differ where m is odd. A shifted window also consists of
four cells, one of each kind, from four adjacent plain windows. If all cells of one kind have the same number of rows,
so have all windows of both blocks, and going from one block's windows to the other's is a fixed permutation.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from jaxprune.nn.windows import Windows


class _Part(NamedTuple):
    """The extent of a cell along one side: first row in the plain window, length, first row in the shifted window."""

    start: int
    length: int
    shifted_start: int


@functools.lru_cache(maxsize=256)
def _taken_from(full: tuple[int, ...]) -> tuple[int, ...]:
    """The kinds of cells in the order in which they lose one row each, until no row is left."""
    held, order = list(full), []
    for _ in range(sum(full)):
        # Webster's rule in reverse: shares are as equal as possible, and no cell ever gains a row.
        fullest = max(range(len(full)), key=lambda kind: ((2 * held[kind] - 1) / full[kind], -kind))
        held[fullest] -= 1
        order.append(fullest)
    return tuple(order)


class Cells(NamedTuple):
    """The cells of a stage; plain values. A window has up to four kinds of cells, in raster order.

    The tokens of a whole map are in raster order. After a merge they are ordered by plain window, then by cell; the
    number of tokens per window determines the number of tokens per cell (`held`).

    Attributes:
      windows: the windows of the stage, with the shift of its shifted blocks, or zeros without any. The map consists of
        whole windows.
    """

    windows: Windows

    @classmethod
    def of(cls, grid: tuple[int, int], size: tuple[int, int], *, shifted: bool) -> "Cells | None":
        """The cells of a grid under windows of `size`, see `Windows.of`; None if it does not consist of whole windows.

        Args:
          shifted: whether any block of the stage shifts its windows.
        """
        windows = Windows.of(grid, size, shifted=shifted)
        return cls(windows) if windows.filled_up() == windows else None

    @property
    def _plain(self) -> Windows:
        return self.windows._replace(shift=(0, 0))

    @property
    def _sides(self) -> tuple[tuple[_Part, ...], ...]:
        sides = zip(self.windows.size, self.windows.shift, strict=True)
        return tuple((_Part(0, s, m - s), _Part(s, m - s, 0)) if s else (_Part(0, m, 0),) for m, s in sides)

    @property
    def _kinds(self) -> tuple[tuple[_Part, _Part], ...]:
        down, across = self._sides
        return tuple((row, column) for row in down for column in across)

    @property
    def num_windows(self) -> int:
        """Number of windows of the map."""
        return math.prod(self.windows.counts)

    def tokens_of_window(self, tokens: int) -> int:
        """The number of tokens per window, for this number of tokens of the map."""
        return tokens // self.num_windows

    def is_whole(self, tokens: int) -> bool:
        """Whether this is the number of tokens of the map before any merge."""
        return tokens == math.prod(self.windows.grid)

    def held(self, tokens: int) -> tuple[int, ...]:
        """The number of tokens of each kind of cell when a window has that many `tokens`: shares as equal as possible.

        >>> Cells(Windows((14, 14), (7, 7), (3, 3))).held(34)
        (6, 8, 9, 11)
        """
        full = tuple(row.length * column.length for row, column in self._kinds)
        merged = _taken_from(full)[: sum(full) - tokens]
        return tuple(cell - merged.count(kind) for kind, cell in enumerate(full))

    def after_merging(self, tokens: int, fewest: int) -> int:
        """The number of tokens per window after merging pairs in its cells: `fewest`, or the next possible number."""
        before = self.held(tokens)
        pairs = lambda after: all(was - now <= was // 2 for was, now in zip(before, self.held(after), strict=True))
        while tokens > fewest and pairs(tokens - 1):
            tokens -= 1
        return tokens

    def split(self, values: Shaped[Array, "b n e"]) -> list[Shaped[Array, "w _ e"]]:
        """The tokens of each kind of cell; images, then the cells of an image, along the first axis."""
        _, n, e = values.shape
        if self.is_whole(n):
            inside = self._plain.cut(values[:, None]).reshape(-1, *self.windows.size, e)
            cells = [inside[:, r.start : r.start + r.length, c.start : c.start + c.length] for r, c in self._kinds]
            return [cell.reshape(cell.shape[0], -1, e) for cell in cells]
        tokens = self.tokens_of_window(n)
        return jnp.split(values.reshape(-1, tokens, e), np.cumsum(self.held(tokens))[:-1], axis=1)

    def join(self, values: Sequence[Shaped[Array, "w _ e"]]) -> Shaped[Array, "b n e"]:
        """The inverse of `split`: in raster order if no token has merged, otherwise ordered by window."""
        tokens, e = sum(kind.shape[1] for kind in values), values[0].shape[-1]
        if tokens != math.prod(self.windows.size):
            return jnp.concatenate(values, axis=1).reshape(-1, tokens * self.num_windows, e)
        down, across = self._sides
        cells = iter(values)
        sized = lambda r, c: next(cells).reshape(-1, r.length, c.length, e)
        inside = jnp.concatenate([jnp.concatenate([sized(r, c) for c in across], axis=2) for r in down], axis=1)
        return self._plain.join(inside.reshape(-1, 1, tokens, e))[:, 0]

    def cut(self, values: Shaped[Array, "b h n e"], *, shifted: bool) -> Shaped[Array, "w h k e"]:
        """Cuts tokens after a merge into windows, as `Windows.cut` does for a whole map."""
        b, h, n, e = values.shape
        tokens = self.tokens_of_window(n)
        windows = self._rolled(values.reshape(b, h, *self.windows.counts, tokens, e), shifted, -1)
        return windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, h, tokens, e)

    def uncut(self, values: Shaped[Array, "w h k e"], *, shifted: bool) -> Shaped[Array, "b h n e"]:
        """The inverse of `cut`."""
        _, h, tokens, e = values.shape
        windows = values.reshape(-1, *self.windows.counts, h, tokens, e).transpose(0, 3, 1, 2, 4, 5)
        windows = self._rolled(windows, shifted, 1)
        return windows.reshape(windows.shape[0], h, -1, e)

    def _rolled(self, windows: Shaped[Array, "b h y x k e"], shifted: bool, by: int) -> Shaped[Array, "b h y x k e"]:
        """Moves the cells of plain windows to their shifted windows, or back."""
        if not shifted:
            return windows
        kinds = jnp.split(windows, np.cumsum(self.held(windows.shape[4]))[:-1], axis=4)
        # What is above the shift, and left of it, ends the window before.
        steps = [tuple(by * (part.shifted_start > 0) for part in kind) for kind in self._kinds]
        return jnp.concatenate([jnp.roll(kind, step, (2, 3)) for kind, step in zip(kinds, steps, strict=True)], axis=4)

    def shift_mask(self, tokens: int) -> Float[np.ndarray, "w k k"] | None:
        """`Windows.shift_mask` for shifted windows with this number of tokens; it separates no tokens of one cell."""
        mask = self.windows.shift_mask()
        if mask is None:
            return None
        first = [r.shifted_start * self.windows.size[1] + c.shifted_start for r, c in self._kinds]
        of_token = np.repeat(first, self.held(tokens))
        return mask[:, of_token][:, :, of_token]

    def places(self, position: Float[Array, "b n 2"], *, shifted: bool) -> Int[Array, "w k 2"]:
        """The (row, column) of tokens after a merge in their window, each rounded to the nearest place."""
        shift = np.asarray(self.windows.shift if shifted else (0, 0), np.int32)
        size = np.asarray(self.windows.size, np.int32)
        inside = (jnp.round(position).astype(jnp.int32) - shift[None, None]) % size[None, None]
        return self.cut(inside[:, None], shifted=shifted)[:, 0]
