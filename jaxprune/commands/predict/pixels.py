"""Draws one picture with the class of each pixel."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxprune.commands.shared import networks, reporting
from jaxprune.config import Config
from jaxprune.data.broken import Unreadable
from jaxprune.data.folder import read_example
from jaxprune.data.joint.resize import resized
from jaxprune.dense.parts.inference import probabilities
from jaxprune.errors import UserError
from jaxprune.nn.images import normalize
from jaxprune.report.pictures.label_map import legend, overlay, palette
from jaxprune.train.writer import Writer


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Segments `config.image`, resized to the size of the network of `config.run`."""
    model, names, origin = networks.with_head(config)
    try:
        image = np.array(read_example(str(Path(config.image).expanduser()), upright=False))
    except Unreadable as error:
        raise UserError(f"Image {config.image!r} cannot be read: {error.reason}.") from error
    record = model.preprocessing
    images = normalize(jnp.asarray(resized(image, record.img_size))[None], record.mean, record.std)
    classes = np.asarray(probabilities(model(images), image.shape[:2])[0].argmax(-1)).astype(np.uint8)
    shares = np.bincount(classes.reshape(-1), minlength=len(names)) / classes.size
    order, colours, slug = np.argsort(-shares, kind="stable"), palette(len(names)), f"predict-{Path(config.image).stem}"
    present = [int(k) for k in order if shares[k]]
    drawn = overlay(image, classes, colours)
    writer = Writer(workdir, tensorboard=False)
    path = writer.images(0, slug, drawn)
    writer.close()
    with reporting.report_section(workdir, origin, "Prediction", slug) as section:
        section.gallery([image, drawn], [str(config.image), "predicted classes"], columns=2)
        key = legend([names[k] for k in present], [colours[k] for k in present])
        section.figure(key, alt="Legend")
        rows = [{"class": names[k], "share of pixels": float(shares[k])} for k in present]
        section.table(rows, formats=".1%")
    return {"class": names[present[0]], "share": float(shares[present[0]]), "picture": str(path)}
