"""Detections on the way to average precision: back to the size of the images, masks pasted and encoded."""

import numpy as np
import pytest

from jaxprune.data.joint.detection import TestObjects
from jaxprune.data.objects.base import bitmap, coco_content, columns
from jaxprune.data.objects.scenes import SceneObjects
from jaxprune.dense import Detections
from jaxprune.evaluate.collectors.detections import DetectionCollector

pytest.importorskip("faster_coco_eval")
SHAPE, SIDE, COUNT = (24, 32), 64, 6


class Files(SceneObjects):
    """Scenes with what `coco_content` reads."""

    def objects(self, index):
        from jaxprune.data.objects.base import Object

        example = self[index]
        parts = zip(example["boxes"].tolist(), example["classes"].tolist(), example["masks"], strict=True)
        return [Object(tuple(box), label, runs=runs) for box, label, runs in parts]

    def path(self, index):
        return f"{index}.png"


def perfect(example, shift=0.0):
    """The objects themselves as a detector's output for the resized image, and a place that is not taken."""
    factor = SIDE / max(SHAPE)
    box = example["boxes"] * factor + shift
    x0, y0, x1, y1 = example["boxes"][0].astype(int)
    mask = bitmap(example["masks"][0])[y0:y1, x0:x1]
    places = [np.minimum((np.arange(56) + 0.5) * side / 56, side - 1).astype(int) for side in mask.shape]
    fine = mask[places[0][:, None], places[1][None]].astype(np.float32)
    two = lambda part: np.stack([part, np.zeros_like(part)])[None]
    classes = two(example["classes"][0])
    return Detections(two(box[0]), two(np.float32(0.9)), classes, two(fine), np.array([[True, False]]))


@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_objects_as_detections(shift):
    source = Files(COUNT, SHAPE)
    content = coco_content(source, [SHAPE] * COUNT)
    collector = DetectionCollector(content, range(1, COUNT + 1), range(1, source.num_classes + 1))
    change = TestObjects((SIDE, SIDE))
    for index in range(COUNT):
        example = source[index]
        batch = {"index": [index], **{name: [part] for name, part in change.prepare(example, None, False).items()}}
        collector.update(batch, perfect(example, shift))
    result = collector.result()
    assert set(result) == {"bbox", "segm"}
    # What lies beyond the image after the shift is not a detection.
    assert len(collector.detections) == COUNT if not shift else 0 < len(collector.detections) <= COUNT
    if shift:
        assert result["bbox"].summary["AP50"] < 0.2
    else:
        assert result["bbox"].summary["AP"] == pytest.approx(1) and result["segm"].summary["AP50"] == pytest.approx(1)


def test_columns_of_nothing():
    assert columns([])["boxes"].shape == (0, 4) and columns([])["classes"].shape == (0,)
