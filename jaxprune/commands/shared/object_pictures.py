"""Images with their objects, and with what a detector found, shared by `detect` and `predict`."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxprune.data.objects.base import bitmap
from jaxprune.data.objects.truth import Truth
from jaxprune.evaluate.detection import TestedImage
from jaxprune.report import Section
from jaxprune.report.pictures.label_map import legend, palette
from jaxprune.report.pictures.layout import READABLE
from jaxprune.report.pictures.objects import draw_objects

MOST_CLASSES = 20  # of a legend


def add_gallery(
    section: Section, images: Sequence[TestedImage], truth: Truth, class_names: Sequence[str], least: float
) -> None:
    """Adds a gallery of images: objects on the left, detections on the right, and the colours of the classes.

    Args:
      images: of a test.
      truth: their objects.
      class_names: in the order of the classes.
      least: score below which detections are not drawn.
    """
    if not images:
        return
    labels = {number: label for label, number in enumerate(truth.category_ids)}
    annotated, colours = defaultdict(list), palette(len(class_names))
    for entry in truth.content["annotations"]:
        annotated[entry["image_id"]].append(entry)
    panels, captions, present = [], [], set()
    for image in images:
        results = [result for result in image.detections if result["score"] >= least]
        for entries, title in ((annotated[truth.image_ids[image.index]], "objects"), (results, "detections")):
            classes = [labels[entry["category_id"]] for entry in entries]
            present |= set(classes)
            panels.append(draw(image, entries, classes, colours))
            captions.append(f"image {image.index}, {title}: {len(entries)}")
    section.text(
        f"Images of the test, evenly spread: their objects, and the detections with a score of at least {least:g}."
    )
    shown_classes = sorted(present)[:MOST_CLASSES]
    if shown_classes:
        key = legend([class_names[k] for k in shown_classes], [colours[k] for k in shown_classes])
        section.figure(key, caption="", alt="Legend")
    section.gallery(panels, captions, columns=2)


def draw(
    image: TestedImage, entries: Sequence[Mapping[str, Any]], classes: Sequence[int], colours: Sequence[Any]
) -> np.ndarray:
    """Draws COCO's annotations or results over an image, by rising score, with their scores."""
    order = sorted(range(len(entries)), key=lambda place: entries[place].get("score", 1.0))
    factor = max(1, -(-READABLE // min(image.image.shape[:2])))
    picture = image.image.repeat(factor, axis=0).repeat(factor, axis=1)
    scale = np.array(picture.shape[:2]) / np.array(image.shape)
    boxes = np.array([_corners(entries[place]["bbox"]) for place in order]).reshape(-1, 4) * np.tile(scale[::-1], 2)
    masks = [_pixels(entries[place].get("segmentation"), image.shape, picture.shape[:2]) for place in order]
    return draw_objects(
        picture,
        boxes,
        [classes[place] for place in order],
        colours,
        masks=[mask for mask in masks if mask is not None] if all(mask is not None for mask in masks) else (),
        labels=[f"{entries[place]['score']:.0%}" for place in order if "score" in entries[place]],
    )


def _corners(box: Sequence[float]) -> tuple[float, float, float, float]:
    x, y, width, height = box
    return x, y, x + width, y + height


def _pixels(segmentation: Any, shape: tuple[int, int], size: Sequence[int]) -> np.ndarray | None:
    """The mask of an object at the size of a picture; None without any."""
    if not segmentation:
        return None
    if isinstance(segmentation, list):
        from jaxprune.data.annotations.shapes import segmentation as drawn

        mask = drawn(segmentation, shape)
    else:
        mask = bitmap(segmentation)
    rows, columns = ((np.arange(most) * side // most) for most, side in zip(size, mask.shape, strict=True))
    return mask[rows][:, columns]
