"""One image in; its class, the confidence and a picture out."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxprune import data as loader
from jaxprune.analysis.forwards import probabilities
from jaxprune.checkpoints.run import load_model
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.evaluate import Stacked, run_over
from jaxprune.tasks.setup import inputs, networks, reporting
from jaxprune.train.writer import Writer
from jaxprune.viz.pictures.prediction_card import prediction_card
from jaxprune.viz.report import Report

TOP = 5


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Classifies `config.image` with the run directory `config.run`."""
    if not config.run or not config.image:
        raise UserError("Give --config.run=RUN, the run directory of a classifier, and --config.image=FILE.")
    card = networks.classifier_card(config.run)
    model = load_model(config.run)
    image = loader.read_image(config.image, model.preprocessing)
    forwards = {"classes": probabilities(model, card.preprocessing.mean, card.preprocessing.std)}
    batches = [{"image": image[None]}]
    ((stacked, _),) = run_over(batches, forwards, [Stacked("classes")], inputs.mesh(config), show_progress=False)
    confidences = stacked[0]
    names = card.class_names or [str(i) for i in range(len(confidences))]
    order = np.argsort(-confidences)[:TOP]
    best, slug = int(confidences.argmax()), f"predict-{Path(config.image).stem}"
    picture = prediction_card(image, names, confidences, TOP)
    writer = Writer(workdir, tensorboard=False)
    path = writer.images(0, slug, picture)
    writer.close()
    page = Report("jaxprune", str(config.run))
    with reporting.report_section(workdir / "report.html", page, "Prediction", slug) as section:
        section.figure(picture, f"{config.image}: {names[best]}, {confidences[best]:.1%}.")
        section.table([{"class": names[i], "confidence": float(confidences[i])} for i in order], formats=".1%")
    return {"class": names[best], "confidence": float(confidences[best]), "picture": str(path)}
