"""One image in; its class, the confidence and a picture out."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprune import data as loader
from jaxprune.checkpoints.run import load_model, read_card
from jaxprune.config import Config
from jaxprune.data.augment import normalize
from jaxprune.errors import UserError
from jaxprune.nn.params import jitted
from jaxprune.tasks import setup
from jaxprune.train.writer import Writer
from jaxprune.viz.pictures.prediction_card import prediction_card
from jaxprune.viz.report import Report

TOP = 5


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Classifies `config.image` with the run directory `config.init`."""
    if not config.init or not config.image:
        raise UserError("Give --config.init=RUN, the run directory of a classifier, and --config.image=FILE.")
    card = read_card(config.init)
    if card["kind"] != "model":
        raise UserError(f"{config.init} holds a pre-training model, which does not classify: fine-tune it first.")
    model = load_model(config.init)
    image = loader.read_image(config.image, model.preprocessing)
    logits, _ = jitted(model)(normalize(jnp.asarray(image[None]), card["mean"], card["std"]))
    confidences = np.asarray(jax.nn.softmax(logits[0]))
    names = card["class_names"] or [str(i) for i in range(len(confidences))]
    picture = prediction_card(image, names, confidences, TOP)
    writer = Writer(workdir, tensorboard=False)
    path = writer.images(0, f"predict-{Path(config.image).stem}", picture)
    writer.close()
    best = int(confidences.argmax())
    page = Report("jaxprune", str(config.init))
    section = page.section("Prediction", slug=f"predict-{Path(config.image).stem}")
    section.figure(picture, f"{config.image}: {names[best]}, {confidences[best]:.1%}.")
    order = np.argsort(-confidences)[:TOP]
    section.table([{"class": names[i], "confidence": float(confidences[i])} for i in order], formats=".1%")
    section.command(setup.command())
    page.add_to(workdir / "report.html")
    return {"class": names[best], "confidence": float(confidences[best]), "picture": str(path)}
