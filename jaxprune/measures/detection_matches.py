"""Which detections meet an object, by COCO's rule, image by image; and from that average precision with intervals.

`average_precision` has the numbers of the set. What a draw of its images would give needs the matches of every image,
which the library does not return.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from jaxprune.errors import UserError
from jaxprune.measures.average_precision import library
from jaxprune.measures.intervals import Interval, jackknife_interval

OVERLAPS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
MOST = 100  # detections of an image and a class
GROUPS = 200


class ClassMatches(NamedTuple):
    """The detections of a class by falling score, and its objects.

    Attributes:
      images: the place of each detection's image.
      right: at each overlap, whether a detection meets an object.
      ignored: at each overlap, whether it meets a crowd, and counts neither way.
      objects: the number of objects of each image, without crowds.
    """

    images: Int[np.ndarray, "d"]
    right: Bool[np.ndarray, "t d"]
    ignored: Bool[np.ndarray, "t d"]
    objects: Int[np.ndarray, "n"]


def matches(
    content: Mapping[str, Any], detections: Sequence[Mapping[str, Any]], kind: str = "bbox"
) -> tuple[ClassMatches, ...]:
    """Returns the matches of every class, in the order of the categories' ids.

    Args:
      content, detections, kind: see `average_precision`.

    Raises:
      UserError: faster-coco-eval is not installed.
    """
    places = {number: place for place, number in enumerate(sorted(entry["id"] for entry in content["images"]))}
    classes = sorted(entry["id"] for entry in content["categories"])
    objects, results = defaultdict(list), defaultdict(list)
    for entry in content["annotations"]:
        objects[entry["category_id"], entry["image_id"]].append(entry)
    for result in detections:
        results[result["category_id"], result["image_id"]].append(result)
    masks = _masks(content) if kind == "segm" else None
    of_class = []
    for number in classes:
        counts, parts = np.zeros(len(places), np.int64), []
        for image, place in places.items():
            annotated, of_image = objects[number, image], results[number, image]
            counts[place] = sum(not entry.get("iscrowd") for entry in annotated)
            if of_image:
                parts.append((place, *_of_image(annotated, of_image, masks)))
        of_class.append(_sorted(parts, counts))
    return tuple(of_class)


def _masks(content: Mapping[str, Any]) -> dict[Any, Any]:
    """The run lengths of every object, by its id."""
    sizes = {entry["id"]: (entry["height"], entry["width"]) for entry in content["images"]}
    return {entry["id"]: _runs(entry, sizes[entry["image_id"]]) for entry in content["annotations"]}


def _runs(entry: Mapping[str, Any], size: tuple[int, int]) -> Any:
    mask, segmentation = library().mask, entry["segmentation"]
    if isinstance(segmentation, list):
        return mask.merge(mask.frPyObjects(segmentation, *size))
    return mask.frPyObjects(segmentation, *size) if isinstance(segmentation["counts"], list) else segmentation


def _of_image(annotated: Sequence[Any], results: Sequence[Any], masks: Any) -> tuple[np.ndarray, ...]:
    """The scores of an image's detections of one class, and which of them are right, and ignored."""
    results = sorted(results, key=lambda result: -result["score"])[:MOST]
    annotated = sorted(annotated, key=lambda entry: bool(entry.get("iscrowd")))
    scores = np.array([result["score"] for result in results])
    shape = (len(OVERLAPS), len(results))
    right, ignored = np.zeros(shape, bool), np.zeros(shape, bool)
    if not annotated:
        return scores, right, ignored
    crowd = np.array([bool(entry.get("iscrowd")) for entry in annotated])
    if masks is None:
        of_results, of_objects = ([entry["bbox"] for entry in part] for part in (results, annotated))
        shapes = np.asarray(of_results, np.float64), np.asarray(of_objects, np.float64)
    else:
        shapes = [result["segmentation"] for result in results], [masks[entry["id"]] for entry in annotated]
    overlaps = np.asarray(library().mask.iou(*shapes, crowd.astype(np.uint8).tolist()), np.float64)
    occupied = np.zeros((len(OVERLAPS), len(annotated)), bool)
    rows = np.arange(len(OVERLAPS))
    for place, overlap in enumerate(overlaps):
        free = (~occupied | crowd[None]) & (overlap[None] >= np.minimum(OVERLAPS, 1 - 1e-10)[:, None])
        # An object goes before a crowd; of equal overlaps the last one counts.
        rank = np.where(free, overlap[None] + 2.0 * ~crowd[None], -1.0)
        best = rank.shape[1] - 1 - rank[:, ::-1].argmax(1)
        met = free[rows, best]
        right[:, place], ignored[:, place] = met & ~crowd[best], met & crowd[best]
        occupied[rows[met], best[met]] = True
    return scores, right, ignored


def _sorted(parts: Sequence[tuple[Any, ...]], counts: np.ndarray) -> ClassMatches:
    """The detections of all images by falling score, ties in the order of the images."""
    if not parts:
        nothing = np.zeros((len(OVERLAPS), 0), bool)
        return ClassMatches(np.zeros(0, np.int64), nothing, nothing, counts)
    images = np.concatenate([np.full(len(scores), place) for place, scores, _, _ in parts])
    scores = np.concatenate([scores for _, scores, _, _ in parts])
    order = np.argsort(-scores, kind="mergesort")
    right, ignored = (np.concatenate([part[i] for part in parts], axis=1)[:, order] for i in (2, 3))
    return ClassMatches(images[order], right, ignored, counts)


def at_overlap(by_class: Sequence[ClassMatches], overlap: float) -> tuple[ClassMatches, ...]:
    """Returns the matches at one overlap alone: AP50 and its interval are those of `at_overlap(by_class, 0.5)`.

    >>> import numpy as np
    >>> right = np.arange(10)[:, None] < 7  # one detection, which overlaps its object by .82
    >>> matches = ClassMatches(np.array([0]), right, np.zeros((10, 1), bool), np.array([1]))
    >>> parts = [matches], at_overlap([matches], 0.5), at_overlap([matches], 0.9)
    >>> [precision_of(part, np.ones(1, int)) for part in parts]
    [0.7, 1.0, 0.0]

    Args:
      overlap: one of `OVERLAPS`.

    Raises:
      UserError: it is none of them.
    """
    (rows,) = np.nonzero(np.isclose(OVERLAPS, overlap))
    if not len(rows):
        raise UserError(f"Detections are matched at overlaps of 0.5, 0.55 … 0.95, not at {overlap}: use one of them.")
    return tuple(part._replace(right=part.right[rows], ignored=part.ignored[rows]) for part in by_class)


def precision_of(by_class: Sequence[ClassMatches], times: Int[np.ndarray, "n"]) -> float:
    """Returns average precision where each image counts that many times; NaN without objects."""
    classes = [_of_class(matched, times) for matched in by_class]
    present = [value for value in classes if not np.isnan(value)]
    return float(np.mean(present)) if present else float("nan")


def _of_class(matched: ClassMatches, times: Int[np.ndarray, "n"]) -> float:
    objects = int((matched.objects * times).sum())
    if not objects:
        return float("nan")
    weights = times[matched.images]
    right = np.cumsum(matched.right * weights[None], axis=1)
    wrong = np.cumsum((~matched.right & ~matched.ignored) * weights[None], axis=1)
    if not right.shape[1]:
        return 0.0
    recall, precision = right / objects, right / np.maximum(right + wrong, np.spacing(1))
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    padded = np.concatenate([precision, np.zeros((len(precision), 1))], axis=1)
    at = [row[np.searchsorted(of_row, RECALLS, side="left")] for row, of_row in zip(padded, recall, strict=True)]
    return float(np.mean(at))


def interval(by_class: Sequence[ClassMatches]) -> Interval:
    """Returns average precision with its 95 % interval over images (jackknife).

    A bootstrap would be biased: a draw repeats images, and copies of an object that is found stand side by side.

    Args:
      by_class: the matches of a set, from `matches`.
    """
    return _interval(lambda times: precision_of(by_class, times), len(by_class[0].objects), least=0)


def paired_interval(first: Sequence[ClassMatches], second: Sequence[ClassMatches]) -> Interval:
    """Returns the difference of two average precisions of the same images, with its 95 % interval over images."""
    gap = lambda times: precision_of(first, times) - precision_of(second, times)
    return _interval(gap, len(first[0].objects), least=-1)


def _interval(statistic: Callable[[Int[np.ndarray, "n"]], float], count: int, least: float) -> Interval:
    """The jackknife over `GROUPS` groups of images of a statistic of how often each counts, from `least` to 1."""
    all_images, without = np.ones(count, int), []
    for group in np.array_split(np.random.default_rng(0).permutation(count), min(count, GROUPS)):
        times = all_images.copy()
        times[group] = 0
        without.append(statistic(times))
    value = statistic(all_images)
    low, high = jackknife_interval(value, np.array(without))
    return Interval(value, *np.clip((low, high), least, 1).tolist())
