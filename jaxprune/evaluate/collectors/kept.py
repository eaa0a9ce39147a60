"""The patches left of the first images after each step of a plan."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxprune.data.clips import one_view
from jaxprune.evaluate import Batch

DRAWN = 4


class KeptPatches(NamedTuple):
    """What a plan does with the patches of some images.

    Attributes:
      images: uint8 (n, h, w, 3), or clips, uint8 (n, frames, h, w, 3).
      assign: for each step the token that holds each patch, int (n, p); -1 = dropped.
      grids: for each step the grid of patches, (rows, columns), or of tubes, (layers, rows, columns).
    """

    images: np.ndarray
    assign: tuple[np.ndarray, ...]
    grids: Sequence[tuple[int, ...]]


class KeptCollector:
    """Collects {network: `KeptPatches`} of the first images for networks under a plan.

    Args:
      grids: for each network the patch grid of each step, see `Host.step_grids`; its forward function computes
        `assign`.
      most: maximum number of images.
    """

    def __init__(self, grids: Mapping[str, Sequence[tuple[int, ...]]], most: int = DRAWN):
        self._grids, self._most = grids, most
        self._parts: list[tuple[np.ndarray, Mapping[str, Any]]] = []

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        if missing := self._most - sum(len(images) for images, _ in self._parts):
            assign = {name: [step[:missing] for step in outputs[name]["assign"]] for name in self._grids}
            self._parts.append((batch["image"][:missing], assign))

    def result(self) -> dict[str, KeptPatches]:
        """Returns the patches of each network that has a plan."""
        images, kept = np.stack([one_view(image) for images, _ in self._parts for image in images]), {}
        for name, grids in self._grids.items():
            steps = [np.concatenate(parts) for parts in zip(*(assign[name] for _, assign in self._parts), strict=True)]
            if steps:
                kept[name] = KeptPatches(images, tuple(steps), grids)
        return kept
