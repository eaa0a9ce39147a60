"""Token-reduction plans side by side: cost, measured speed, whether it keeps the FLOPs' promise, accuracy, pictures."""

from pathlib import Path
from typing import Any

import jax
from flax import nnx

from jaxprune import models
from jaxprune.analysis import plans
from jaxprune.bench import report
from jaxprune.bench.contestants import DENSE, Contestant, contestants
from jaxprune.bench.costs import costs
from jaxprune.bench.publish import publish
from jaxprune.checkpoints.card import Card
from jaxprune.checkpoints.run import load_model
from jaxprune.config import Config
from jaxprune.data.sample import Sample
from jaxprune.tasks.setup import inputs, networks, reporting
from jaxprune.viz.report import Report


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Compares `config.plans` on a model, or on the classifier in the run directory `config.run`, with its data.

    Costs and speed are those of one device; accuracy is measured on all devices of `config.mesh`.
    """
    card = networks.classifier_card(config.run) if config.run else None
    model = load_model(config.run) if card else models.create(config.model, rngs=nnx.Rngs(config.seed))
    made = contestants(model, networks.plans(config), seed=config.seed)
    rows = costs(made, config.batch_size, config.rounds)
    found = _compare(config, card, made) if card else None
    if found:
        rows = [{**row, **found.scores[row["plan"]]} for row in rows]
    workdir.mkdir(parents=True, exist_ok=True)
    name = config.run or config.model
    publish(f"{name}, batch {config.batch_size}", rows, workdir / "benchmark.csv")
    page = Report("jaxprune benchmark", name)
    with reporting.report_section(workdir / "report.html", page, "Plans side by side", "benchmark") as section:
        section.text(
            f"Batch {config.batch_size} on {jax.devices()[0].device_kind}, medians of {config.rounds} rounds in which "
            "every plan takes its turn. `kept` is the measured speed-up over the one that the FLOPs imply."
        )
        report.describe(section, rows, "accuracy" if found else "speed-up")
        if found:
            plans.pictures(section, found)
    fastest = max(rows, key=lambda row: row["images/s"])
    return {"plans": len(config.plans), "fastest": fastest["plan"], "speed-up": fastest["speed-up"]}


def _compare(config: Config, card: Card, made: dict[str, Contestant]) -> plans.Comparison:
    config = inputs.with_data_of(config.run, config)
    images, size = Sample(inputs.source(config, "eval"), config.num_images), made[DENSE].model.patch_embed.img_size
    batches = inputs.eval_batches(config, images, size)
    normal = {"mean": card.preprocessing.mean, "std": card.preprocessing.std}
    return plans.compare(made, batches, inputs.mesh(config), class_names=card.class_names, **normal)
