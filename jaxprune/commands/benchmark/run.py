"""Measures the plans of a config on one network, and writes a table and a report."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx

from jaxprune import models
from jaxprune.bench.costs import costs
from jaxprune.bench.publish import publish
from jaxprune.commands.benchmark import page
from jaxprune.commands.shared import inputs, networks, plans_page, reporting
from jaxprune.config import Config
from jaxprune.evaluate.collectors import plans
from jaxprune.evaluate.contestants import Contestant, contestants
from jaxprune.open import Classifier
from jaxprune.report import Report, Section


class Measured(NamedTuple):
    """The measurements of all plans.

    Attributes:
      name: name of the network.
      rows: rows of the table, one per contestant.
      comparison: the results on images; None without images.
      classes: number of classes of the images, 0 without images.
    """

    name: str
    rows: list[dict[str, Any]]
    comparison: plans.Comparison | None
    classes: int


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Compares `config.plans` on the classifier of `config.run` or `config.model`, or on a model with random weights.

    Costs and speed are for one device. Accuracy is measured on all devices of `config.mesh`, if there are images, of
    the run or of `config.data`.
    """
    measured = measure(config, workdir)
    document = Report("jaxprune benchmark", measured.name)
    with reporting.report_section(workdir / "report.html", document, "Plans side by side", "benchmark") as section:
        describe(config, section, measured)
    fastest = max(measured.rows, key=lambda row: row["images/s"])
    return {"plans": len(config.plans), "fastest": fastest["plan"], "speed-up": fastest["speed-up"]}


def measure(config: Config, workdir: Path) -> Measured:
    """Measures the plans, prints the results as a table, and writes it to `workdir`."""
    classifier = networks.classifier(config) if config.run or config.model.weights else None
    model = classifier.model if classifier else models.create(config.model.name, rngs=nnx.Rngs(config.seed))
    candidates = contestants(model, networks.plans(config), scorer=networks.guide(config, model), seed=config.seed)
    rows = costs(candidates, config.batch_size, config.rounds)
    comparison, classes = None, 0
    if classifier is not None and inputs.has_images(classifier.origin, config):
        comparison, classes = _compare(config, classifier, candidates), len(classifier.class_names)
        rows = [{**row, **comparison.columns(row["plan"])} for row in rows]
    workdir.mkdir(parents=True, exist_ok=True)
    name = classifier.origin if classifier else config.model.name
    publish(f"{name}, batch {config.batch_size}", rows, workdir / "benchmark.csv")
    return Measured(name, rows, comparison, classes)


def describe(config: Config, section: Section, measured: Measured) -> None:
    """Adds the measurements to a section of a report."""
    guided = f" from_scores drops patches by the scorer {config.scorer}." if config.scorer else ""
    section.text(
        f"Batch {config.batch_size} on {jax.devices()[0].device_kind}, medians of {config.rounds} rounds, each "
        "timing every plan once. The speed-up is computed within a round; `kept` is its ratio to the speed-up "
        f"that the FLOPs imply.{guided}"
    )
    comparison = measured.comparison
    against = "accuracy" if comparison else "speed-up"
    page.describe(section, measured.rows, against, rounds=config.rounds, classes=measured.classes)
    if comparison:
        if comparison.realised:
            section.text(plans.ROWS)
        plans_page.pictures(section, comparison)


def _compare(config: Config, classifier: Classifier, candidates: dict[str, Contestant]) -> plans.Comparison:
    config = inputs.with_data_of(classifier.origin, classifier.model.preprocessing, config)
    batches = inputs.eval_batches(config, inputs.sample(config, inputs.held_out(config, classifier)))
    return plans.compare(candidates, batches, inputs.mesh(config), class_names=classifier.class_names)
