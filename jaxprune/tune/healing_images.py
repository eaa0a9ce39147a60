"""The images that taught healed networks, which say nothing of how these do on others."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxprune.measures.image_cells import digest
from jaxprune.tune.image_copies import UNREADABLE, in_order
from jaxprune.tune.shown_images import Show
from jaxprune.tune.store import Store


class HealingImages(NamedTuple):
    """The images that taught healed networks, which say nothing of how these do on others.

    Attributes:
      images: which of the images they are.
      unrecorded: the networks that do not say what taught them.
    """

    images: np.ndarray
    unrecorded: tuple[str, ...]

    @classmethod
    def of(
        cls, model: Any, healed: Mapping[str, Any], show: Show, count: int, firsts: np.ndarray, store: Store
    ) -> "HealingImages":
        """Compares the images with the records of the networks; copies of an image that taught one count as it does."""
        records = {name: network.training_images for name, network in healed.items()}
        unrecorded = tuple(name for name, record in records.items() if record is None)
        records[""] = model.training_images
        images, (readable,) = np.zeros(count, bool), np.nonzero(firsts != UNREADABLE)
        pixels = lambda: (image for image in in_order(show, count) if image is not None)
        for record in filter(None, records.values()):
            make = lambda record=record: {"images": record.include(pixels())}
            key = digest(np.frombuffer(record.digests, np.uint8)).hex()
            taught = store.arrays(f"training images {key}", make, images=count)["images"]
            images |= np.isin(firsts, firsts[readable[taught]])
        return cls(images, unrecorded)

    @property
    def words(self) -> str:
        """What to say where too few images are left; empty if none taught."""
        return "taught a healed network" if self.images.any() else ""

    @property
    def note(self) -> str:
        """The sentences for the reason of the choice."""
        left = f" {self.images.sum()} images taught a healed network, and were left out." if self.images.any() else ""
        names = ", ".join(self.unrecorded)
        unknown = f" The guarantee holds for {names} only if none of these images taught it: its file does not say."
        return left + unknown * bool(names)
