"""COCO's average precision of boxes and masks, computed by faster-coco-eval (extra `detection`)."""

import contextlib
import copy
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxprune.errors import UserError, unknown

KINDS = ("bbox", "segm")
NAMES = (
    "AP",
    "AP50",
    "AP75",
    "AP_small",
    "AP_medium",
    "AP_large",
    "AR_1",
    "AR_10",
    "AR_100",
    "AR_small",
    "AR_medium",
    "AR_large",
)
UNDEFINED = -1.0  # without any object of the kind


class AveragePrecision(NamedTuple):
    """The numbers of COCO's protocol, from 0 to 1; -1 where there are no objects.

    Attributes:
      summary: {name in `NAMES`: number}.
      class_ids: the ids of the categories, ascending.
      per_class: AP of each of them, NaN without objects.
      precision: at each overlap (.5 to .95), each of 101 recalls, each class; all areas, 100 detections.
      recall: at each overlap, for each class, for each area (all, small, medium, large), for 1, 10 and 100 detections.
    """

    summary: dict[str, float]
    class_ids: Int[np.ndarray, "k"]
    per_class: Float[np.ndarray, "k"]
    precision: Float[np.ndarray, "10 101 k"]
    recall: Float[np.ndarray, "10 k 4 3"]


def average_precision(
    annotations: Mapping[str, Any],
    detections: Sequence[Mapping[str, Any]],
    kind: str = "bbox",
    *,
    classes: bool = True,
    keep_boxes: bool = False,
) -> AveragePrecision:
    """COCO's average precision of detections.

    Args:
      annotations: the content of COCO's `instances_*.json`.
      detections: dicts with `image_id`, `category_id`, `score`, and `bbox` (x, y, width, height) or `segmentation` (run
        lengths, see `encode`).
      kind: "bbox" or "segm".
      classes: False compares all boxes with all objects, whatever their classes.
      keep_boxes: for masks, whether the areas small, medium and large are those of the detections' boxes, where there
        are any; they are the masks' otherwise, as in detectron2.

    Raises:
      UserError: the kind is unknown, faster-coco-eval is not installed, or it cannot read annotations or detections.
    """
    if kind not in KINDS:
        raise unknown("kind of average precision", kind, KINDS)
    coco = library()
    content = copy.deepcopy(dict(annotations))
    results = [dict(detection) for detection in detections]
    if kind == "segm" and not keep_boxes:
        results = [{key: value for key, value in result.items() if key != "bbox"} for result in results]
    class_ids = np.asarray(sorted(entry["id"] for entry in content.get("categories", ())), np.int64)
    if not results:
        return _of_nothing(content, class_ids, classes)
    try:
        # The library prints a table.
        with contextlib.redirect_stdout(io.StringIO()):
            truth = coco.COCO(content)
            evaluation = coco.COCOeval_faster(truth, truth.loadRes(results), kind, print_function=_quiet)
            evaluation.params.useCats = int(classes)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
    except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"The detections do not fit the annotations ({error!r}): give both in COCO's format."
        ) from error
    precision = np.asarray(evaluation.eval["precision"])[:, :, :, 0, -1]
    recall = np.asarray(evaluation.eval["recall"])
    stats = np.asarray(evaluation.stats[: len(NAMES)], float)
    return AveragePrecision(
        dict(zip(NAMES, stats.tolist(), strict=True)), class_ids, _by_class(precision), precision, recall
    )


_OVERLAPS = tuple(np.linspace(0.5, 0.95, 10))
_LARGEST = 1e10
_AREAS = {"all": (0, _LARGEST), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, _LARGEST)}


def _by_class(precision: Float[np.ndarray, "t r k"]) -> Float[np.ndarray, "k"]:
    """The mean over all overlaps and recalls; NaN without objects."""
    defined = precision > UNDEFINED
    counts = defined.sum((0, 1))
    sums = np.where(defined, precision, 0).sum((0, 1))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _of_nothing(content: Mapping[str, Any], class_ids: Any, classes: bool) -> AveragePrecision:
    """The numbers without any detection: 0 where there are objects of the class and the area."""
    objects = [entry for entry in content.get("annotations", ()) if not entry.get("iscrowd")]
    kinds = class_ids.tolist() if classes else [None]  # None: objects of all classes
    has_objects = np.zeros((len(kinds), len(_AREAS)), bool)
    for row, kind in enumerate(kinds):
        for column, (least, most) in enumerate(_AREAS.values()):
            has_objects[row, column] = any(
                least <= entry.get("area", 0) <= most for entry in objects if kind in (None, entry["category_id"])
            )
    values = np.where(has_objects, 0.0, UNDEFINED)
    precision = np.broadcast_to(values[:, 0], (len(_OVERLAPS), 101, len(kinds))).copy()
    recall = np.broadcast_to(values[None, :, :, None], (len(_OVERLAPS), *values.shape, 3)).copy()
    of_area = dict(zip(_AREAS, values.max(0, initial=UNDEFINED).tolist(), strict=True))
    summary = {name: of_area.get(name.partition("_")[2], of_area["all"]) for name in NAMES}
    return AveragePrecision(summary, class_ids, _by_class(precision), precision, recall)


def encode(mask: Any) -> dict[str, Any]:
    """The run lengths of a mask, bool (h, w), in COCO's compressed form; `counts` is text, as JSON has it.

    Raises:
      UserError: faster-coco-eval is not installed.
    """
    runs = library().mask.encode(np.asfortranarray(mask, np.uint8))
    counts = runs["counts"]
    return {"size": list(runs["size"]), "counts": counts.decode() if isinstance(counts, bytes) else counts}


def _quiet(*values: Any, **options: Any) -> None:
    """Prints nothing."""


class _Library(NamedTuple):
    COCO: Any
    COCOeval_faster: Any
    mask: Any


def library() -> _Library:
    """Returns faster-coco-eval: its classes and its run lengths.

    Raises:
      UserError: it is not installed.
    """
    try:
        from faster_coco_eval import COCO, COCOeval_faster
        from faster_coco_eval.core import mask
    except ImportError as error:
        raise UserError(
            "COCO's average precision needs faster-coco-eval, which is not installed: "
            "pip install 'jaxprune[detection]'."
        ) from error
    return _Library(COCO, COCOeval_faster, mask)
