"""The images on which exported files are compared with their network."""

from typing import Any

import numpy as np

from jaxprune.config import Config
from jaxprune.data.pictures import open_pictures


def comparison_images(config: Config, model: Any) -> list[np.ndarray] | None:
    """Returns pictures of `config.images`, evenly spread over them; None for the built-in scenes."""
    if not config.images:
        return None
    pictures = open_pictures(config.images, model.preprocessing, seed=config.seed)
    count = min(config.num_images or len(pictures.names), len(pictures.names))
    return [pictures.read(index * len(pictures.names) // count) for index in range(count)]
