"""Draws one picture with the class of each pixel."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxprune.commands.predict import picture
from jaxprune.commands.segment.networks import time_of_run
from jaxprune.commands.shared import networks, reporting
from jaxprune.config import Config
from jaxprune.evaluate.segmentation.at_test import TestTime, groups
from jaxprune.evaluate.segmentation.measure import predictor
from jaxprune.nn.params import split
from jaxprune.open import Classifier
from jaxprune.ops.label_maps import IGNORED
from jaxprune.report.pictures.label_map import legend, overlay, palette


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Segments `config.image` by the network of `config.run`, as that run tests: windows, mirrors, scales."""
    model, names, origin = opened = networks.with_head(config)
    image, classes = picture.read(config, model.preprocessing), classes_of(config, opened)
    shares = np.bincount(classes.reshape(-1), minlength=len(names)) / classes.size
    order, colours = np.argsort(-shares, kind="stable"), palette(len(names))
    present = [int(k) for k in order if shares[k]]
    overlay_image = overlay(image, classes, colours)
    path = picture.write(config, workdir, overlay_image)
    with reporting.report_section(workdir, origin, "Prediction", picture.slug(config)) as section:
        section.gallery([image, overlay_image], [str(config.image), "predicted classes"], columns=2)
        key = legend([names[k] for k in present], [colours[k] for k in present])
        section.figure(key, alt="Legend")
        rows = [{"class": names[k], "share of pixels": float(shares[k])} for k in present]
        section.table(rows, formats=".1%")
    return {"class": names[present[0]], "share": float(shares[present[0]]), "picture": str(path)}


def classes_of(config: Config, opened: Classifier | None = None) -> np.ndarray:
    """Returns the class of each pixel of `config.image`, uint8 (h, w).

    Args:
      opened: the network, by default that of `config.run`.
    """
    network, names, _ = opened or networks.with_head(config)
    model = networks.under_plan(config, network)
    return _classes(time_of_run(config.run, model), model, picture.read(config, model.preprocessing), len(names))


def _classes(time: TestTime, model: Any, image: np.ndarray, num_classes: int) -> np.ndarray:
    """The class of each pixel, uint8 (h, w)."""
    shape: Any = image.shape[:2]
    ((_, way),) = groups((time,), [shape])
    parts = split(model)
    call = jax.jit(predictor(parts, time, way, model.preprocessing, num_classes))
    batch = picture.batch_of_one(way, {"image": image, "label_map": np.full(shape, IGNORED, np.uint8)})
    return np.asarray(call({**parts.params, **parts.rest}, batch)["prediction"])[0, : shape[0], : shape[1]]
