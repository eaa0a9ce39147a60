"""Masks: images whose pixel values are class numbers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxprune.data import images
from jaxprune.data.annotations.base import OBJECT, AnnotatedFiles, Annotations, Regions
from jaxprune.data.annotations.class_names import read_class_names
from jaxprune.data.annotations.files import annotated_pictures, annotation_directory, existing_directory, reading
from jaxprune.data.files import read_bytes
from jaxprune.errors import UserError


def open_masks(path: str, *, annotations: str = "", classes: str = "", void: int = 255) -> Annotations:
    """Opens a directory with `images/` and a directory of PNG masks of the same names.

    The values of a mask are class numbers, with 0 for the background. A mask of nothing but 0 and 255 marks a single
    class, "object".

    Args:
      path: The directory.
      annotations: Name of the directory of masks; by default the first of masks/, semantic_masks/, SegmentationClass/
        and annotations/.
      classes: "coco" or "voc" for the numbers that these data sets use, or the path of a text file with one class per
        line: a name, counted from 1, or a number and a name. By default `classes.txt` in `path`. A class without a name
        is called by its number.
      void: The value of pixels that belong to no class.

    Raises:
      UserError: There are no annotated pictures, or the class names cannot be read. Reading an example also raises it
        if the sizes of mask and picture differ.
    """
    root = existing_directory(path)
    folder = annotation_directory(root, annotations, ("masks", "semantic_masks", "SegmentationClass", "annotations"))
    names = read_class_names(root, classes)
    files = annotated_pictures(root, folder, ".png")

    def read_regions(index: int, shape: tuple[int, int]) -> Regions:
        file = folder / f"{Path(files[index]).stem}.png"
        with reading(file), images.open_image(read_bytes(file, images.MAX_BYTES)) as picture:
            return mask_regions(np.asarray(picture), names, void, files[index], shape)

    return AnnotatedFiles(str(path), files, read_regions)


def mask_regions(mask: np.ndarray, names: Mapping[int, str], void: int, source: str, shape: tuple[int, int]) -> Regions:
    """Splits a mask of class numbers into {class: bool (h, w)}.

    Args:
      mask: (h, w), or (h, w, c), of which the maximum over the channels counts.
      names: {number: name}; a class without a name is called by its number.
      void: The value of pixels that belong to no class.
      source: What the error message calls the picture.
      shape: (height, width) of the picture.

    Raises:
      UserError: The mask is not of that size.
    """
    if mask.shape[:2] != shape:
        raise UserError(f"The mask of {source} is {mask.shape[:2]} and its picture {shape}: they must be of one size.")
    mask = mask if mask.ndim == 2 else mask.max(-1)
    values = [int(value) for value in np.unique(mask) if value]
    if values == [255] or mask.dtype == bool:
        return {OBJECT: mask > 0} if values else {}
    return {names.get(value, str(value)): mask == value for value in values if value != void}
