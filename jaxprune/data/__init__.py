"""Sources of images (built-in scenes, folders, TFDS), and what turns them into batches on the host and the device."""

from jaxprune.data.loader import create_source, describe, eval_batches, read_image, train_batches
from jaxprune.data.scenes import Scenes

__all__ = ["Scenes", "create_source", "describe", "eval_batches", "read_image", "train_batches"]
