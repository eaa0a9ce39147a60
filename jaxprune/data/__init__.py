"""Sources of images (built-in scenes, folders, TFDS), and their way into batches on the host and the device."""

from jaxprune.data.clips import Views, load_clips
from jaxprune.data.crop_resize import load_images, read_image
from jaxprune.data.loader import eval_batches, train_batches
from jaxprune.data.scenes import Scenes
from jaxprune.data.source_factory import create_source, describe

__all__ = [
    "Scenes",
    "Views",
    "create_source",
    "describe",
    "eval_batches",
    "load_clips",
    "load_images",
    "read_image",
    "train_batches",
]
