"""The picture of a prediction: read from a file, and drawn."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxprune.commands.shared import networks
from jaxprune.commands.shared.picture_name import picture_name
from jaxprune.config import Config
from jaxprune.data.broken_examples import Unreadable
from jaxprune.data.folder import read_example
from jaxprune.data.scenes import Scenes
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing
from jaxprune.train.writer import Writer


def read(config: Config, preprocessing: Preprocessing) -> np.ndarray:
    """Returns `config.image` as it is stored, uint8 (h, w, 3); or a built-in scene.

    Args:
      preprocessing: the network's, of whose size a scene is.

    Raises:
      UserError: it cannot be read.
    """
    if config.image == "scenes":
        size = preprocessing.img_size
        return Scenes(split="test", num_examples=1, image_size=size, seed=config.seed)[0]["image"]
    try:
        return np.array(read_example(str(Path(config.image).expanduser()), upright=False))
    except Unreadable as error:
        raise UserError(f"Image {config.image!r} cannot be read: {error.reason}.") from error


def batch_of_one(way: Any, example: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns an example alone in a batch, prepared as in a test.

    Args:
      way: of images into the batches of a test, such as `TestMaps`.
    """
    return {name: np.asarray(value)[None] for name, value in way.prepare(example, _no_draws, False).items()}


def _no_draws(stream: int) -> Any:
    raise AssertionError(f"stream {stream}: nothing is drawn for a prediction")


def slug(config: Config) -> str:
    """The name of the prediction's section and files: another one for another picture, network or plan."""
    about = str(networks.origin(config)), config.plan, config.model.name, config.img_size
    return picture_name("predict", config.image, *about)


def write(config: Config, workdir: Path, image: Any) -> Path:
    """Writes what was drawn to `workdir`, and returns the file."""
    writer = Writer(workdir, tensorboard=False)
    path = writer.images(0, slug(config), image)
    writer.close()
    return path
