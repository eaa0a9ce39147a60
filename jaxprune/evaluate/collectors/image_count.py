"""The number of images of a pass."""

from collections.abc import Mapping
from typing import Any

from jaxprune.evaluate import Batch


class ImageCount:
    """Counts the images of a pass."""

    def __init__(self) -> None:
        self._images = 0

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        self._images += len(batch["label"])

    def result(self) -> int:
        """Returns their number."""
        return self._images
