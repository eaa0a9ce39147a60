"""Draws the reconstructions of a pre-trained model."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxprune import data as loader
from jaxprune.commands.shared import inputs, networks, reporting
from jaxprune.commands.visualize import pixels_or_objects
from jaxprune.commands.visualize.slug import slug
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.evaluate.collectors import reconstruction
from jaxprune.open import Run, open_framework
from jaxprune.train.writer import Writer


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Draws reconstructions of `config.image`, or of held-out images, by the model of `config.run`.

    A segmentation network or a detector gets its predictions drawn.
    """
    if networks.segments(config) or networks.detects(config):
        if config.image:
            raise UserError(f"{config.run} holds no pre-training framework: use the command predict for one image.")
        draw = pixels_or_objects.pixels if networks.segments(config) else pixels_or_objects.objects
        return draw(config, workdir)
    model = open_framework(Run(config.run))
    if config.image:
        images = loader.read_image(config.image, model.preprocessing)[None]
    else:
        settings = inputs.with_data_of(config.run, model.preprocessing, config)
        settings.batch_size = config.num_images
        images = inputs.first_images(settings, inputs.source(settings, "eval"))
    picture = reconstruction.picture(model, model.preprocessing, np.asarray(images))
    writer = Writer(workdir, tensorboard=False)
    path = writer.images(0, slug(config), picture)
    writer.close()
    with reporting.report_section(workdir, str(config.run), "Reconstructions", slug(config)) as section:
        section.figure(picture, reconstruction.caption(model, "The image" if config.image else "Held-out images"))
    return {"picture": str(path), "images": len(images)}
