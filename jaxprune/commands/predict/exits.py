"""Classifies one picture with a network that spends by image: where it leaves, and what each exit says."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy

from jaxprune.commands.predict import picture
from jaxprune.commands.shared import networks, reporting
from jaxprune.config import Config
from jaxprune.data.pictures import open_pictures
from jaxprune.dynamic import confidence, exit_of
from jaxprune.dynamic.exit_policy import EVERYBODY, NOBODY
from jaxprune.nn.params import jitted
from jaxprune.report.pictures.prediction_card import prediction_card

TOP = 5


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Classifies `config.image` with the network of `config.run`, under the most exact thresholds of its dial.

    Without a dial the image leaves at the last exit.
    """
    model, names, origin = networks.by_image(config)
    image = open_pictures(config.image, model.preprocessing, seed=config.seed).read(0)
    logits, costs = np.asarray(jitted(model)(image[None]), np.float32), model.costs()
    sure = confidence(logits)
    exit = int(exit_of(sure, np.array(model.dial[0] if model.dial else (*[NOBODY] * (len(costs) - 1), EVERYBODY)))[0])
    shares = scipy.special.softmax(logits[:, 0], axis=-1)
    best = int(shares[exit].argmax())
    card = prediction_card(image, names, shares[exit], TOP)
    path = picture.write(config, workdir, card)
    with reporting.report_section(workdir, origin, "Prediction", picture.slug(config)) as section:
        text = f"{config.image}: {names[best]}, {shares[exit, best]:.1%}; it leaves at exit {exit + 1} of {len(costs)}."
        section.figure(card, text)
        rows = [
            {"exit": index + 1, "class": names[row.argmax()], "confidence": float(row.max()), "GMAC": float(cost)}
            for index, (row, cost) in enumerate(zip(shares, costs, strict=True))
        ]
        section.table(rows, formats={"confidence": ".1%", "GMAC": ".4g"}, caption="What each exit says, and costs.")
    confidences = {"confidence": float(shares[exit, best]), "exit": exit + 1, "GMAC": float(costs[exit])}
    return {"class": names[best], **confidences, "picture": str(path)}
