"""Draws one picture with the boxes and masks of its objects."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxprune.commands.predict import picture
from jaxprune.commands.shared import networks, object_pictures, reporting
from jaxprune.config import Config
from jaxprune.data.augment_objects import detector_input
from jaxprune.data.joint.detection import TestObjects
from jaxprune.dense import Detector
from jaxprune.evaluate.collectors.detections import DetectionCollector
from jaxprune.evaluate.detection import TestedImage
from jaxprune.report.pictures.label_map import legend, palette

LEAST = 0.5  # score of the detections that are drawn


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Finds the objects of `config.image`, resized to fit the network of `config.run`."""
    model, names, origin = networks.with_head(config)
    image = picture.read(config, model.preprocessing)
    model = networks.under_plan(config, model)
    results = found(model, image)
    classes, colours = [result["category_id"] for result in results], palette(len(names))
    shape: Any = image.shape[:2]
    detection_image = object_pictures.draw(TestedImage(0, image, shape, results), results, classes, colours)
    path = picture.write(config, workdir, detection_image)
    with reporting.report_section(workdir, origin, "Prediction", picture.slug(config)) as section:
        section.figure(detection_image, f"{config.image}: {len(results)} objects with a score of at least {LEAST}.")
        if present := sorted(set(classes)):
            section.figure(legend([names[k] for k in present], [colours[k] for k in present]), alt="Legend")
        rows = [
            {"class": names[k], "score": result["score"], "box": " ".join(f"{side:.0f}" for side in result["bbox"])}
            for k, result in zip(classes, results, strict=True)
        ]
        if rows:
            section.table(rows, formats={"score": ".1%"}, caption="Boxes: left, top, width and height in pixels.")
    return {"objects": len(results), "classes": [names[k] for k in classes], "picture": str(path)}


def found(model: Detector, image: np.ndarray) -> list[dict[str, Any]]:
    """Returns what a detector finds in an image, as COCO's results whose categories are from 0.

    Detections with a score below `LEAST` are left out.

    Args:
      model: the detector, dense or under a plan.
      image: uint8 (h, w, 3), of any size.
    """
    record = model.preprocessing
    prepared = picture.batch_of_one(TestObjects(record.img_size), {"image": image})
    batch = {"index": np.zeros(1, np.int32), **prepared}
    images, sizes, _ = detector_input(batch, mean=record.mean, std=record.std)
    collector = DetectionCollector({}, [0], range(model.num_classes))
    collector.update(batch, jax.jit(model)(images, sizes))
    return [result for result in collector.detections if result["score"] >= LEAST]
