"""Detections in COCO's format, gathered in one pass: boxes in pixels of the original images, masks as run lengths."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxprune.measures.average_precision import AveragePrecision, average_precision, encode
from jaxprune.ops.instance_masks import THRESHOLD, paste


class DetectionCollector:
    """Turns a detector's output for each batch into results that `average_precision` reads.

    Args:
      content: the annotations, as in COCO's `instances_*.json`.
      image_ids: the id of each image of the source, by its index.
      category_ids: the id of each class.
    """

    def __init__(self, content: Mapping[str, Any], image_ids: Sequence[int], category_ids: Sequence[int]):
        self.content, self.image_ids, self.category_ids = content, list(image_ids), list(category_ids)
        self.detections: list[dict[str, Any]] = []

    def update(self, batch: Mapping[str, Any], outputs: Any) -> None:
        """Adds the detections of a batch.

        Args:
          batch: of `joint.detection.TestObjects`, without its padding: `index`, `extent` and `shape`.
          outputs: `dense.Detections` of its images.
        """
        for row, index in enumerate(np.asarray(batch["index"]).tolist()):
            valid = np.asarray(outputs.valid[row])
            extent, shape = (np.asarray(batch[name][row]) for name in ("extent", "shape"))
            masks = None if outputs.masks is None else np.asarray(outputs.masks[row])[valid]
            boxes, scores, classes = (
                np.asarray(part[row])[valid] for part in (outputs.boxes, outputs.scores, outputs.classes)
            )
            self.detections += self._of_image(self.image_ids[index], boxes, scores, classes, masks, extent, shape)

    def _of_image(
        self, image: int, boxes: Any, scores: Any, classes: Any, masks: Any, extent: Any, shape: Any
    ) -> list[dict[str, Any]]:
        boxes = on_original(boxes, extent, shape)
        is_nonempty = (boxes[:, 2:] > boxes[:, :2]).all(1)
        results = [
            {
                "image_id": image,
                "category_id": self.category_ids[label],
                "score": score,
                "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
            }
            for box, score, label in zip(
                boxes[is_nonempty].astype(float).tolist(),
                scores[is_nonempty].tolist(),
                classes[is_nonempty].tolist(),
                strict=True,
            )
        ]
        if masks is not None:
            for result, mask, box in zip(results, masks[is_nonempty], boxes[is_nonempty], strict=True):
                pasted = paste(mask[None], box[None], (int(shape[0]), int(shape[1])))[0]
                result["segmentation"] = encode(pasted >= THRESHOLD)
        return results

    def result(self) -> dict[str, AveragePrecision]:
        """Average precision of boxes and, if there are masks, of these: {"bbox": …, "segm": …}."""
        kinds = ["bbox", *(["segm"] if any("segmentation" in detection for detection in self.detections) else [])]
        return {kind: average_precision(self.content, self.detections, kind) for kind in kinds}


def on_original(boxes: np.ndarray, extent: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """Boxes of a resized image in pixels of the original one, inside of it.

    >>> on_original(np.array([[5.0, 5, 12, 9]]), (10, 10), (20, 30)).tolist()
    [[15.0, 10.0, 30.0, 18.0]]

    Args:
      extent: rows and columns of the resized image.
      shape: those of the original one.
    """
    scale = np.asarray(shape, np.float64)[::-1] / np.asarray(extent)[::-1]
    return np.clip(boxes * np.tile(scale, 2), 0, np.tile(np.asarray(shape)[::-1], 2)).astype(np.float32)
