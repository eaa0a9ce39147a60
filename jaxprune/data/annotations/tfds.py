"""TFDS data sets with boxes (`coco/2017`, `voc/2007`) or masks (`scene_parse150`)."""

import os
from pathlib import Path

import numpy as np

from jaxprune.data import decode, tfds_source
from jaxprune.data.annotations.base import Annotated, Annotations, Regions, add_region
from jaxprune.data.annotations.class_names import KNOWN, class_name
from jaxprune.data.annotations.files import reading
from jaxprune.data.annotations.masks import mask_regions
from jaxprune.data.annotations.shapes import box
from jaxprune.errors import UserError

_ROUNDED = 0.01  # tolerance for boxes that exceed their image, as a fraction of its side


class TfdsAnnotations:
    """A split of a prepared TFDS data set with boxes or masks; nothing is downloaded.

    Args:
      name: A TFDS name, such as "coco/2017".
      split: A split in TFDS's notation, such as "validation" or "train[:10%]".
      data_dir: directory of the prepared data sets, by default `$TFDS_DATA_DIR` or `~/tensorflow_datasets`.

    Raises:
      UserError: the data set is unknown or not prepared, or has neither the split nor boxes or masks.
    """

    def __init__(self, name: str, *, split: str = "validation", data_dir: str | os.PathLike | None = None):
        self.name = f"{name}/{split}"
        # A prepared directory of this name is read without TFDS's code for the data set, which may need TensorFlow.
        where = data_dir or os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
        try:
            builder = tfds_source._builder(name, Path(where).expanduser())
        except ModuleNotFoundError as error:
            raise UserError(
                f"TFDS data set {name!r} is not prepared in {where}, and TFDS cannot inspect it without packages "
                "that are not here: prepare it where TensorFlow is (--file_format=array_record), and give data_dir=."
            ) from error
        self._records, features = tfds_source._open(builder, split), builder.info.features
        self._mask = next((key for key in ("annotation", "segmentation_mask") if key in features), None)
        if self._mask is None and "objects" not in features:
            raise UserError(
                f"TFDS data set {name!r} has neither boxes ('objects') nor masks ('annotation', 'segmentation_mask'). "
                f"It has: {', '.join(sorted(features))}."
            )
        labels = None if self._mask else features["objects"].feature["label"]
        # Masks carry no names.
        keys = KNOWN.get(name.partition("/")[0].partition(":")[0], {}) if self._mask else {}
        self._names = keys or dict(enumerate(getattr(labels, "names", None) or ()))

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Annotated:
        record = self._records[index]
        image = decode.to_rgb(record["image"])
        if self._mask:
            values = np.asarray(record[self._mask])
            return Annotated(image, mask_regions(values[..., 0], self._names, 255, self.name, image.shape[:2]))
        regions: Regions = {}
        with reading(f"{index} of {self.name}"):
            for corners, kind in zip(record["objects"]["bbox"], record["objects"]["label"], strict=True):
                edges = np.asarray(corners, float)
                if np.any(np.abs(edges - 0.5) > 0.5 + _ROUNDED):
                    raise ValueError(f"a box ends outside of its image: {edges.tolist()} are not all from 0 to 1")
                name = class_name(self._names, int(kind), self.name)
                add_region(regions, name, box(edges, image.shape[:2], relative=True))
        return Annotated(image, regions)


def open_tfds(name: str, *, split: str = "validation", data_dir: str = "") -> Annotations:
    """Opens a prepared TFDS data set with boxes or masks.

    Args:
      name: A TFDS name, such as "coco/2017".
      split: A split in TFDS's notation.
      data_dir: as for `TfdsAnnotations`; "" for the default.

    Raises:
      UserError: as for `TfdsAnnotations`.
    """
    return TfdsAnnotations(name, split=split, data_dir=data_dir or None)
