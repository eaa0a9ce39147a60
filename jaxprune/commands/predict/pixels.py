"""Draws one picture with the class of each pixel."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxprune.commands.predict import picture
from jaxprune.commands.shared import networks, reporting
from jaxprune.config import Config
from jaxprune.data.joint.resize import resized
from jaxprune.dense.parts.inference import probabilities
from jaxprune.nn.images import normalize
from jaxprune.report.pictures.label_map import legend, overlay, palette


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Segments `config.image`, resized to the size of the network of `config.run`."""
    model, names, origin = networks.with_head(config)
    image = picture.read(config)
    record = model.preprocessing
    images = normalize(jnp.asarray(resized(image, record.img_size))[None], record.mean, record.std)
    classes = np.asarray(probabilities(model(images), image.shape[:2])[0].argmax(-1)).astype(np.uint8)
    shares = np.bincount(classes.reshape(-1), minlength=len(names)) / classes.size
    order, colours = np.argsort(-shares, kind="stable"), palette(len(names))
    present = [int(k) for k in order if shares[k]]
    drawn = overlay(image, classes, colours)
    path = picture.write(config, workdir, drawn)
    with reporting.report_section(workdir, origin, "Prediction", picture.slug(config)) as section:
        section.gallery([image, drawn], [str(config.image), "predicted classes"], columns=2)
        key = legend([names[k] for k in present], [colours[k] for k in present])
        section.figure(key, alt="Legend")
        rows = [{"class": names[k], "share of pixels": float(shares[k])} for k in present]
        section.table(rows, formats=".1%")
    return {"class": names[present[0]], "share": float(shares[present[0]]), "picture": str(path)}
