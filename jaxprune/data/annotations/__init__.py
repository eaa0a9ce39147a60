"""Images with annotated objects, in the formats commonly used for detection and segmentation."""

import inspect
from typing import Any

from jaxprune.data.annotations import coco, masks, scenes, tfds, voc, yolo
from jaxprune.data.annotations.base import Annotations
from jaxprune.data.annotations.unseen_classes import UNSEEN
from jaxprune.errors import UserError, require_options, unknown

FORMATS = {
    "scenes": scenes.open_scenes,
    "yolo": yolo.open_yolo,
    "masks": masks.open_masks,
    "voc": voc.open_voc,
    "coco": coco.open_coco,
    "tfds": tfds.open_tfds,
}


def open_annotations(source: str, /, **options: Any) -> Annotations:
    """Opens annotated images.

    Args:
      source: one of `FORMATS`.
      options: arguments of that format's function; those that are "" or None are ignored.

    Raises:
      UserError: the source or an option is unknown, a required option is missing, or there are no annotated images.
    """
    if source not in FORMATS:
        raise unknown("source of annotations", source, FORMATS)
    parameters = inspect.signature(FORMATS[source]).parameters
    arguments = {name: value for name, value in options.items() if value not in ("", None)}
    require_options(repr(source), arguments, parameters)
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in arguments:
            raise UserError(f"Annotations of the kind {source!r} need {name}=.")
    opened = FORMATS[source](**arguments)
    if not len(opened):
        raise UserError(f"{opened.name} holds no annotated pictures.")
    return opened


__all__ = ["UNSEEN", "Annotations", "open_annotations"]
