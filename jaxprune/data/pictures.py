"""Pictures of one's own, without labels: a folder, one file, or the built-in scenes; read ahead in batches."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxprune.data.folder import image_files
from jaxprune.data.images import read_image
from jaxprune.data.scenes import Scenes
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing

SCENES = 6  # pictures that "scenes" stands for


class Pictures(NamedTuple):
    """Numbered pictures, all read at one size.

    Attributes:
      names: of the pictures.
      read: a number to its picture, uint8 (h, w, 3); raises a `UserError` if that cannot be read.
    """

    names: Sequence[str]
    read: Callable[[int], np.ndarray]


def open_pictures(path: str, preprocessing: Preprocessing, *, seed: int = 0) -> Pictures:
    """Finds pictures.

    Args:
      path: a folder, one picture, or "scenes" for the built-in ones.
      preprocessing: how they are prepared.
      seed: of the built-in scenes.

    Raises:
      UserError: there are none.
    """
    if path == "scenes":
        scenes = Scenes(split="test", num_examples=SCENES, image_size=preprocessing.img_size, seed=seed)
        return Pictures([f"scene {i}" for i in range(SCENES)], lambda index: scenes[index]["image"])
    if not path:
        raise UserError("Give --config.images=FOLDER, or one picture, to score.")
    root = Path(path).expanduser()
    files = [root] if root.is_file() else [Path(file) for file in image_files(root)]
    if not files:
        raise UserError(f"{path} holds no pictures: give a folder with some, or one picture.")
    base = root.parent if root.is_file() else root
    names = [str(file.relative_to(base)) for file in files]
    return Pictures(names, lambda index: read_image(files[index], preprocessing))


def read_ahead(
    pictures: Pictures, starts: Sequence[int], batch_size: int, num_threads: int
) -> Iterator[list[tuple[np.ndarray | None, str]]]:
    """Yields the batches that begin at `starts`, each picture with why it cannot be read; reads the next meanwhile.

    Args:
      pictures: the pictures.
      starts: numbers of the first pictures.
      batch_size: pictures of a batch; the last one may have fewer.
      num_threads: threads that read.
    """

    def read(index: int) -> tuple[np.ndarray | None, str]:
        try:
            return pictures.read(index), ""
        except UserError as error:
            return None, str(error)

    with ThreadPoolExecutor(num_threads) as pool:
        ask = lambda start: pool.map(read, range(start, min(start + batch_size, len(pictures.names))))
        batches = (ask(start) for start in starts)
        asked = next(batches, None)
        while asked is not None:
            following = next(batches, None)
            yield list(asked)
            asked = following
