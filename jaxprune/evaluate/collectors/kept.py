"""Pictures of the patches left after each step of a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxprune.data.clips import one_view
from jaxprune.evaluate import Batch
from jaxprune.report.pictures.film_strip import film_strip, grouped_strip
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.token_groups import token_groups

SHOWN = 4


class Kept:
    """Collects, for each network under a plan, a picture of the first images, drawn by `stages`.

    Args:
      grids: for each network the patch grid of each step, see `Host.step_grids`; its forward function computes
        `assign`.
      shown: maximum number of images.
    """

    def __init__(self, grids: Mapping[str, Sequence[tuple[int, ...]]], shown: int = SHOWN):
        self._grids, self._shown = grids, shown
        self._seen: list[tuple[np.ndarray, Mapping[str, Any]]] = []

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        if missing := self._shown - sum(len(images) for images, _ in self._seen):
            assign = {name: [step[:missing] for step in outputs[name]["assign"]] for name in self._grids}
            self._seen.append((batch["image"][:missing], assign))

    def result(self) -> dict[str, np.ndarray]:
        """Returns a picture for each network that has a plan."""
        images = np.stack([one_view(image) for images, _ in self._seen for image in images])
        pictures = {}
        for name, grids in self._grids.items():
            steps = [np.concatenate(parts) for parts in zip(*(assign[name] for _, assign in self._seen), strict=True)]
            if steps:
                pictures[name] = stages(images, steps, grids)
        return pictures


def stages(images: np.ndarray, assign: Sequence[Any], grids: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Draws a row for each image: the image, then after every step its dropped and merged patches.

    Clips are drawn as film strips, one below the other.

    Args:
      images: uint8 (n, h, w, 3), or clips, uint8 (n, frames, h, w, 3).
      assign: for each step the row that holds each patch, int (n, p); -1 = dropped.
      grids: for each step the grid of patches, (rows, columns), or of tubes, (layers, rows, columns).
    """
    if images.ndim == 5:
        return _strips(images, assign, grids)
    cells = []
    for row, image in enumerate(images):
        cells.append(upscale(image))
        steps = zip(assign, grids, strict=True)
        cells += [token_groups(upscale(image), np.asarray(step)[row], (grid[0], grid[1])) for step, grid in steps]
    return tile(cells, columns=1 + len(assign))


def _strips(clips: np.ndarray, assign: Sequence[Any], grids: Sequence[tuple[int, ...]]) -> np.ndarray:
    cells = []
    for row, clip in enumerate(clips):
        cells.append(film_strip(clip, None, (grids[0][0], grids[0][1], grids[0][2])))
        for step, grid in zip(assign, grids, strict=True):
            cells.append(grouped_strip(clip, np.asarray(step)[row], (grid[0], grid[1], grid[2])))
    return tile(cells, columns=1, pad=6)
