"""Opens a data source by its name and options, and summarizes it."""

import inspect
import os
from typing import Any

from jaxprune.data import memory, video
from jaxprune.data.clips import Views
from jaxprune.data.flag_scenes import FlagScenes
from jaxprune.data.folder import open_split
from jaxprune.data.held_out import is_split_here, part_of
from jaxprune.data.maps.folder import MapFolder
from jaxprune.data.maps.label_maps import LabelMaps
from jaxprune.data.maps.scenes import SceneMaps
from jaxprune.data.maps.tfds import TfdsMaps
from jaxprune.data.moving_scenes import MovingScenes
from jaxprune.data.scenes import Scenes
from jaxprune.data.source import Source, frames_of
from jaxprune.data.tfds_source import Tfds
from jaxprune.errors import UserError, require_options, unknown

SHAPES, FLAGS = OBJECTS = ("shapes", "flags")  # of built-in scenes


def _open_folder(
    path: str = "",
    *,
    split: str | None,
    labels: bool = True,
    exif: bool = True,
    held_out: float = 0.0,
    held_out_seed: int = 0,
    views: Views | None = None,
    label_maps: LabelMaps | None = None,
    maps: str = "",
) -> Source:
    if not path:
        raise UserError("The folder source needs the path of a directory of images.")
    if label_maps is not None:
        return MapFolder(path, split, label_maps, maps)
    if views is not None:
        video.require_av()  # once, and not for each file
        exif = views.preprocessing.exif
    if held_out and split is not None and is_split_here(path, split):
        return part_of(open_split(path, labels=labels, exif=exif, reader=views), split, held_out, held_out_seed)
    return open_split(path, split, labels=labels, exif=exif, reader=views)


def _open_scenes(
    num_examples: int = 10_000,
    image_size: int | tuple[int, int] = 64,
    seed: int = 0,
    objects: str = SHAPES,
    *,
    split: str,
    views: Views | None = None,
    label_maps: bool = False,
) -> Source:
    if objects not in OBJECTS:
        raise unknown("objects of built-in scenes", objects, OBJECTS)
    if objects == FLAGS:
        if views is not None or label_maps:
            raise UserError(f"There are neither clips nor label maps of scenes of {FLAGS}: set objects={SHAPES!r}.")
        return FlagScenes(num_examples, image_size, seed, split)
    if label_maps:
        return SceneMaps(num_examples, image_size, seed, split)
    if views is not None:
        return MovingScenes(views, num_examples, seed, split)
    return Scenes(num_examples, image_size, seed, split)


def _open_tfds(
    name: str = "",
    data_dir: str | os.PathLike | None = None,
    labels: bool = True,
    image_key: str = "image",
    label_key: str = "label",
    exif: bool = True,
    only_labelled: bool = False,
    *,
    split: str,
    label_maps: LabelMaps | None = None,
    maps: str = "",
) -> Source:
    if label_maps is not None:
        options: Any = {"map_key": maps} if maps else {}
        return TfdsMaps(name, split=split, rules=label_maps, data_dir=data_dir, image_key=image_key, **options)
    keys: Any = {"image_key": image_key, "label_key": label_key}
    return Tfds(name, split=split, data_dir=data_dir, labels=labels, **keys, exif=exif, only_labelled=only_labelled)


SOURCES = {"scenes": _open_scenes, "folder": _open_folder, "tfds": _open_tfds}


def create_source(
    source: str = "scenes", /, *, split: str | None = "train", in_memory: bool | None = None, **options: Any
) -> Source:
    """Opens a source of examples.

    Args:
      source: "scenes" (options num_examples, image_size, seed, objects, views), "folder" (path, labels, exif, held_out,
        held_out_seed, views) or "tfds" (name, data_dir, labels, image_key, label_key, exif). With `held_out`, a folder
        without splits is divided: that fraction of each class is held out. With `views`, a `clips.Views`, the examples
        are clips: of a folder's videos, or of scenes in motion. With `label_maps`, a `LabelMaps` (True for scenes),
        they have the class of each pixel, from the directory or the feature `maps`.
      split: the split to open. None: the folder itself, which holds a directory for each class.
      in_memory: whether to decode all images up front and hold them in memory, which requires images of one size. None:
        if they are of one size and take no more than `memory.LIMIT`; clips are then read on demand.
      **options: options of that source.

    Raises:
      UserError: the source or an option is unknown, or the source contains nothing usable.
    """
    if source not in SOURCES:
        raise unknown("data source", source, SOURCES)
    arguments = [name for name in inspect.signature(SOURCES[source]).parameters if name != "split"]
    require_options(f"The data source {source!r}", options, arguments)
    if split is None and (source != "folder" or options.get("label_maps") is not None):
        raise UserError(
            "split=None opens a folder whose directories are classes, and no other source: name a split, such "
            "as 'train'."
        )
    opened = SOURCES[source](split=split, **options)
    if in_memory is False or (in_memory is None and frames_of(opened)):
        return opened
    return memory.load(opened, required=bool(in_memory))


def describe(source: Source) -> str:
    """Returns a one-line summary of a source: its name, size and classes, and how many examples are broken."""
    parts = [f"{source.name}: {len(source):,} {'videos' if frames_of(source) else 'images'}"]
    parts.append(f"{source.num_classes} classes" if source.num_classes else "no labels")
    if isinstance(source, memory.InMemory):
        height, width = source.image_size
        parts.append(f"{height}×{width}, in memory ({source.columns['image'].nbytes / 2**20:.0f} MiB)")
    if source.broken:
        parts.append(f"{len(source.broken)} broken")
    return ", ".join(parts)
