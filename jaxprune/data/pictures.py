"""Your own pictures or videos, without labels: a folder, a file, or built-in scenes; read ahead in batches."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxprune.data import decode, video
from jaxprune.data.clips import Views, read_views
from jaxprune.data.crop_resize import read_image
from jaxprune.data.folder import image_files
from jaxprune.data.moving_scenes import MovingScenes
from jaxprune.data.scenes import Scenes
from jaxprune.errors import PLACE, UserError, shortened
from jaxprune.preprocessing import Preprocessing

BUILT_IN, SCENES = "scenes", 6  # the path of the built-in pictures, and their number


class Pictures(NamedTuple):
    """Numbered pictures, or videos, all read at one size.

    Attributes:
      names: names of the pictures.
      read: reads a picture by index, uint8 (h, w, 3), or a clip or several views of a video (`Views`); raises a
        `UserError` if it cannot be read.
    """

    names: Sequence[str]
    read: Callable[[int], np.ndarray]


def open_pictures(
    path: str, preprocessing: Preprocessing, *, seed: int = 0, num_clips: int = 1, num_crops: int = 1
) -> Pictures:
    """Finds pictures, or videos for a network that reads clips.

    Args:
      path: a folder, one file, or "scenes" for the built-in scenes.
      preprocessing: their preprocessing.
      seed: seed of the built-in scenes.
      num_clips, num_crops: views of a video; see `Views`.

    Raises:
      UserError: there are none, or there are videos for an image network, or pictures for a video network.
    """
    views = Views(preprocessing, num_clips, num_crops) if preprocessing.num_frames else None
    if path == BUILT_IN:
        options = {"split": "test", "num_examples": SCENES, "seed": seed}
        size = preprocessing.img_size
        scenes = Scenes(image_size=size, **options) if views is None else MovingScenes(views, **options)
        return Pictures([f"scene {i}" for i in range(SCENES)], lambda index: scenes[index]["image"])
    kind, extensions = ("pictures", decode.EXTENSIONS) if views is None else ("videos", video.EXTENSIONS)
    other_extensions, other_kind = (video.EXTENSIONS, "videos") if views is None else (decode.EXTENSIONS, "pictures")
    if not path:
        raise UserError("Give images=FOLDER, or one picture, to score.")
    require_there(path)
    root = Path(path).expanduser()
    is_other = root.suffix.lower() in other_extensions if root.is_file() else False
    files = [root] if root.is_file() else [Path(file) for file in image_files(root, (), extensions)]
    if is_other or (not files and root.is_dir() and next(image_files(root, (), other_extensions), None)):
        reads = "images" if views is None else "clips"
        raise UserError(f"{path} holds {other_kind}, but the network reads {reads}: give {kind}, or another network.")
    if not files:
        raise UserError(f"{path} holds no {kind}: give one, or a folder of them.")
    base = root.parent if root.is_file() else root
    names = [str(file.relative_to(base)) for file in files]
    if views is None:
        return Pictures(names, lambda index: read_image(files[index], preprocessing))
    video.require_av()  # once, and not for each file
    return Pictures(names, lambda index: read_views(files[index], views))


def require_there(path: str) -> None:
    """Checks a path of `open_pictures`, without opening anything.

    Raises:
      UserError: there is no such file or folder.
    """
    if path not in ("", BUILT_IN) and not os.path.exists(os.path.expanduser(path)):
        raise UserError(f"There is no file or folder {shortened(path, PLACE)}: check images.")


def read_ahead(
    pictures: Pictures, starts: Sequence[int], batch_size: int, num_threads: int
) -> Iterator[list[tuple[np.ndarray | None, str]]]:
    """Yields the batches that begin at `starts`, with the reasons for unreadable pictures; reads one batch ahead.

    Args:
      pictures: the pictures.
      starts: indices of the first pictures.
      batch_size: pictures per batch; the last one may have fewer.
      num_threads: reading threads.
    """

    def read(index: int) -> tuple[np.ndarray | None, str]:
        try:
            return pictures.read(index), ""
        except UserError as error:
            return None, str(error)

    with ThreadPoolExecutor(num_threads) as pool:
        ask = lambda start: pool.map(read, range(start, min(start + batch_size, len(pictures.names))))
        batches = (ask(start) for start in starts)
        batch = next(batches, None)
        while batch is not None:
            following = next(batches, None)
            yield list(batch)
            batch = following
