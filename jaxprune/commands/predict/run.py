"""Classifies one picture and draws it with its most probable classes."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxprune.commands.predict import exits, objects, picture, pixels
from jaxprune.commands.shared import inputs, networks, reporting
from jaxprune.config import Config
from jaxprune.data.clips import one_view
from jaxprune.data.pictures import open_pictures
from jaxprune.evaluate.collectors import predictions
from jaxprune.report.pictures.film_strip import film_strip, still
from jaxprune.report.pictures.prediction_card import prediction_card
from jaxprune.report.scorer_names import about_images

TOP = 5


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Classifies `config.image` with the classifier of `config.run` or `config.model`, its pixels, or its objects."""
    if networks.segments(config):
        return pixels.run(config, workdir)
    if networks.detects(config):
        return objects.run(config, workdir)
    if networks.spends_by_image(config):
        return exits.run(config, workdir)
    model, names, origin = networks.classifier(config)
    model = networks.under_plan(config, model)
    views = {"num_clips": config.data.num_clips, "num_crops": config.data.num_crops}
    prepared = open_pictures(config.image, model.preprocessing, seed=config.seed, **views).read(0)
    (image,), (confidences,) = predictions.of_pictures(model, [prepared], inputs.mesh(config))
    order = np.argsort(-confidences)[:TOP]
    best = int(confidences.argmax())
    card = prediction_card(still(one_view(image)), names, confidences, TOP)
    path = picture.write(config, workdir, card)
    with reporting.report_section(workdir, origin, "Prediction", picture.slug(config)) as section:
        section.figure(card, f"{config.image}: {names[best]}, {confidences[best]:.1%}.")
        if model.preprocessing.num_frames:
            layers = min(8, model.preprocessing.num_frames)
            strip = film_strip(one_view(image), None, (layers, 1, 1))
            section.figure(strip, about_images(model.preprocessing))
        section.table([{"class": names[i], "confidence": float(confidences[i])} for i in order], formats=".1%")
    return {"class": names[best], "confidence": float(confidences[best]), "picture": str(path)}
