"""A folder of images and a folder of label maps, PNG files of the same names."""

import os
from pathlib import Path

import numpy as np

from jaxprune.data import decode
from jaxprune.data.broken_examples import Unreadable
from jaxprune.data.folder import image_files, read_example
from jaxprune.data.maps.label_maps import LabelMaps
from jaxprune.data.source import Example
from jaxprune.errors import UserError, shortened
from jaxprune.files import listing, read_bytes

IMAGES = ("images", "image", "img", "imgs", "JPEGImages", "leftImg8bit")
MAPS = ("masks", "annotations", "labels", "label_maps", "semantic_masks", "SegmentationClass", "gtFine")
_SHOWN = 3


class MapFolder:
    """Images with label maps: `SPLIT/images/*.jpg` and `SPLIT/masks/*.png`, or `images/SPLIT/…`, `masks/SPLIT/…`.

    `folder[i]` is a dict: `image` uint8 (h, w, 3), `label_map` uint8 (h, w), `label` -1, `index` i. Files are in sorted
    order. The map of an image has its name, or its name and a word after "_" (`street_labelIds.png`).

    Args:
      root: the data set's directory.
      split: the split to open; "" if `root` itself has the two directories.
      rules: how the values of maps are read.
      maps: name of the directory of maps; by default the only one of `MAPS` that exists.

    Raises:
      UserError: a directory is missing, or an image has no map, or there are no images.
    """

    num_frames, exif = 0, False  # maps are not rotated, and photographs with them not either

    def __init__(self, root: str | os.PathLike, split: str, rules: LabelMaps, maps: str = ""):
        top = Path(root).expanduser()
        self.name, self.broken, self.rules = f"{root}/{split}" if split else str(root), dict[str, str](), rules
        self.class_names, self.num_classes = rules.class_names, len(rules.class_names)
        if not top.is_dir():
            raise UserError(f"Image folder {str(root)!r} does not exist or is not a directory.")
        directories = (maps,) if maps else MAPS
        pictures, labelled = _directory(top, split, IMAGES, "images"), _directory(top, split, directories, "label maps")
        self._files = list(image_files(pictures))
        if not self._files:
            raise UserError(f"{pictures} holds no pictures.")
        stems = [str(Path(file).relative_to(pictures).with_suffix("")) for file in self._files]
        owned = _by_image(labelled, {*stems})
        self._maps = [_map_of(stem, owned) for stem in stems]
        if lacking := [file for file, place in zip(self._files, self._maps, strict=True) if place is None]:
            examples = ", ".join(Path(file).name for file in lacking[:_SHOWN])
            raise UserError(
                f"{len(lacking)} of the {len(self._files)} images in {pictures} have no label map in {labelled}: "
                f"{examples}{', …' if len(lacking) > _SHOWN else ''}. Add PNG files of their names, or move the images "
                "away."
            )

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Example:
        index = range(len(self))[index]
        image, file = read_example(self._files[index], upright=False), str(self._maps[index])
        label_map = read_map(file, self.rules)
        if label_map.shape != image.shape[:2]:
            sizes = " and ".join("×".join(map(str, sides[:2])) for sides in (label_map.shape, image.shape))
            raise Unreadable(file, f"map and image have {sizes} pixels", "label map")
        return {"image": image, "label_map": label_map, "label": np.int32(-1), "index": np.int32(index)}

    def path(self, index: int) -> str:
        """Returns the file of example `index`."""
        return self._files[index]

    def size(self, index: int) -> tuple[int, int]:
        """Returns height and width of example `index`, from the header of its map."""
        try:
            with decode.open_image(read_bytes(str(self._maps[index]), decode.MAX_BYTES)) as picture:
                return picture.height, picture.width
        except Exception as error:  # decoders raise many kinds of exceptions on damaged data
            raise Unreadable(str(self._maps[index]), shortened(error), "label map") from error


def read_map(path: str, rules: LabelMaps) -> np.ndarray:
    """Reads a label map, uint8 (h, w); its pixels are numbers, numbers of a palette, or colours.

    Raises:
      Unreadable: the file is broken or gone, or holds what is not a class.
    """
    try:
        return decode_map(read_bytes(path, decode.MAX_BYTES), rules)
    except Exception as error:  # decoders raise many kinds of exceptions on damaged data
        raise Unreadable(path, shortened(error), "label map") from error


def decode_map(data: bytes, rules: LabelMaps) -> np.ndarray:
    """Returns an encoded label map as uint8 (h, w); raises whatever the decoder or the rules raise."""
    with decode.open_image(data) as picture:
        if picture.mode == "1":
            return rules(np.asarray(picture).astype(np.uint8))  # as "L" its ones would be 255, pixels without a class
        if picture.mode not in ("L", "P", "I;16", "I", "RGB"):
            picture = picture.convert("RGB")
        return rules(np.asarray(picture))


def _directory(top: Path, split: str, names: tuple[str, ...], kind: str) -> Path:
    """The one directory of a kind, in either order of split and kind."""
    paths = {place for name in names for place in (top / split / name, top / name / split) if place.is_dir()}
    if len(paths) == 1:
        return paths.pop()
    if paths:
        raise UserError(f"{top} has several directories of {kind}: {', '.join(sorted(map(str, paths)))}: name one.")
    where = f" for the split {split!r}" if split else ""
    raise UserError(
        f"{top} has no directory of {kind}{where}: looked for {', '.join(names)}, above or below the split. "
        f"It holds {shortened(', '.join(entry.name for entry in listing(top)) or 'nothing')}."
    )


def _by_image(directory: Path, stems: set[str]) -> dict[str, list[Path]]:
    """Label maps by the image whose name they have, or have in front of a "_": the longest name, if several fit.

    Args:
      stems: names of the images, relative to their directory and without an extension.
    """
    owned: dict[str, list[Path]] = {}
    for file in image_files(directory, extensions=(".png",)):
        words = str(Path(file).relative_to(directory).with_suffix("")).split("_")
        names = ("_".join(words[:count]) for count in range(len(words), 0, -1))
        if (owner := next((name for name in names if name in stems), None)) is not None:
            owned.setdefault(owner, []).append(Path(file))
    return owned


def _map_of(stem: str, owned: dict[str, list[Path]]) -> Path | None:
    places = owned.get(stem, [])
    exact = [place for place in places if place.stem == Path(stem).name]
    if len(exact or places) > 1:
        raise UserError(
            f"Image {stem} has several label maps: {shortened(', '.join(map(str, places)))}. Keep one of each image."
        )
    return next(iter(exact or places), None)
