"""What a pre-trained model sees and fills in: original, masked, reconstructed, thrown cells marked."""

from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxprune import data as loader
from jaxprune.analysis import reconstruction
from jaxprune.checkpoints.card import Card
from jaxprune.checkpoints.run import load_model
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing
from jaxprune.tasks.setup import inputs, reporting
from jaxprune.train.writer import Writer
from jaxprune.viz.report import Report


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Draws reconstructions of `config.image`, or of held-out images, by the run directory `config.run`."""
    if not config.run:
        raise UserError("Give --config.run=RUN, the run directory of a pre-trained model.")
    card = Card.read(config.run).require("mim", config.run)
    model = load_model(config.run)
    data = inputs.with_data_of(config.run, config).data
    settings: Config = ConfigDict({"data": data, "batch_size": config.num_images, "seed": 0})
    if config.image:
        size = (data.img_size, data.img_size) if isinstance(data.img_size, int) else tuple(data.img_size)
        images = loader.read_image(config.image, Preprocessing(size))[None]
    else:
        images = next(iter(inputs.eval_batches(settings, inputs.source(settings, "eval"))))["image"]
    picture = reconstruction.picture(model, card.preprocessing, np.asarray(images))
    writer = Writer(workdir, tensorboard=False)
    path = writer.images(0, "visualize", picture)
    writer.close()
    page = Report("jaxprune", str(config.run))
    section = page.section("Reconstructions", slug="visualize")
    section.figure(picture, "Original, what the encoder did not see, what the decoder made of it, what was thrown.")
    section.command(reporting.command())
    page.add_to(workdir / "report.html")
    return {"picture": str(path), "images": len(images)}
