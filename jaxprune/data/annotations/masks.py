"""Masks: images whose pixel values are class numbers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxprune.data import decode
from jaxprune.data.annotations.base import OBJECT, AnnotatedFiles, Annotations, Regions
from jaxprune.data.annotations.class_names import read_class_names
from jaxprune.data.annotations.files import annotated_pictures, annotation_directory, existing_directory, reading
from jaxprune.errors import UserError, unknown
from jaxprune.files import read_bytes

ADE20K = "ade20k"


def open_masks(path: str, *, annotations: str = "", classes: str = "", kind: str = "", void: int = 255) -> Annotations:
    """Opens a directory with `images/` and a directory of PNG masks of the same names.

    The values of a mask are class numbers, with 0 for the background. A mask of nothing but 0 and 255 marks a single
    class, "object".

    Args:
      path: the directory.
      annotations: name of the directory of masks; by default the first of masks/, semantic_masks/, SegmentationClass/
        and annotations/.
      classes: "coco", "voc" or "scene_parse150" for the numbers that these data sets use, or the path of a text file
        with one class per line: a name, counted from 1, or a number and a name. By default `classes.txt` in
        `path`. A class without a name is called by its number.
      kind: "ade20k" for coloured masks whose red and green code the class, as in the full ADE20K: R // 10 · 256 + G.
      void: the value of pixels that belong to no class.

    Raises:
      UserError: there are no annotated pictures, or the class names cannot be read. Reading an example also raises it
        if the sizes of mask and picture differ, or if a mask is coloured without a `kind`.
    """
    if kind not in ("", ADE20K):
        raise unknown("kind of masks", kind, (ADE20K,))
    root = existing_directory(path)
    folder = annotation_directory(root, annotations, ("masks", "semantic_masks", "SegmentationClass", "annotations"))
    names = read_class_names(root, classes)
    files = annotated_pictures(root, folder, ".png")

    def read_regions(index: int, shape: tuple[int, int]) -> Regions:
        file = folder / f"{Path(files[index]).stem}.png"
        with reading(file), decode.open_image(read_bytes(file, decode.MAX_BYTES)) as picture:
            mask = class_numbers(np.asarray(picture), kind, str(file))
            return mask_regions(mask, names, void, files[index], shape)

    return AnnotatedFiles(str(path), files, read_regions)


def class_numbers(mask: np.ndarray, kind: str, source: str) -> np.ndarray:
    """Returns the class numbers of a decoded mask, (h, w).

    Args:
      mask: (h, w), or (h, w, c): grey or colours; an alpha channel is ignored.
      kind: "ade20k", or "".
      source: what the error message calls the mask.

    Raises:
      UserError: it has several colours, but no `kind` is given.
    """
    if mask.ndim == 2 or mask.shape[2] < 3:
        return mask if mask.ndim == 2 else mask[..., 0]
    red, green, blue = (mask[..., channel].astype(np.int32) for channel in range(3))
    if kind == ADE20K:
        return red // 10 * 256 + green
    if (red == green).all() and (green == blue).all():
        return mask[..., 0]
    colours = np.unique((red * 256 + green) * 256 + blue)
    if len(colours[colours > 0]) == 1:  # a single object on black
        return np.where(mask[..., :3].any(-1), np.uint8(255), np.uint8(0))
    raise UserError(
        f"The mask {source} has {len(colours)} colours instead of class numbers: give masks with one channel, or "
        f"kind={ADE20K} if red and green code the class as in the full ADE20K."
    )


def mask_regions(mask: np.ndarray, names: Mapping[int, str], void: int, source: str, shape: tuple[int, int]) -> Regions:
    """Splits a mask of class numbers into {class: bool (h, w)}.

    Args:
      mask: class numbers, (h, w).
      names: {number: name}; a class without a name is called by its number.
      void: the value of pixels that belong to no class.
      source: what the error message calls the picture.
      shape: (height, width) of the picture.

    Raises:
      UserError: the mask is not of that size.
    """
    if mask.shape[:2] != shape:
        raise UserError(f"The mask of {source} is {mask.shape[:2]} and its picture {shape}: they must be of one size.")
    values = [int(value) for value in np.unique(mask) if value]
    if values == [255] or mask.dtype == bool:
        return {OBJECT: mask > 0} if values else {}
    return {names.get(value, str(value)): mask == value for value in values if value != void}
