"""Measures the plans of a config on one network, and writes a table and a report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx

from jaxprune import models
from jaxprune.bench.costs import BenchmarkRow, costs
from jaxprune.bench.detector_parts import PartTime, part_times
from jaxprune.bench.publish import publish
from jaxprune.commands import segment
from jaxprune.commands.benchmark import by_image, page
from jaxprune.commands.shared import inputs, networks, plans_page, reporting
from jaxprune.commands.shared.dense_networks import WITHOUT_EXITS
from jaxprune.config import Config
from jaxprune.dense import ExitSegmenter
from jaxprune.dense.mask_rcnn import MaskRCNN
from jaxprune.dense.parts.base import DenseNetwork
from jaxprune.evaluate.collectors import plans
from jaxprune.evaluate.contestants import Contestant, contestant, contestants, on_smaller_images, random_images
from jaxprune.evaluate.segmentation.exits import gflops_on
from jaxprune.files import as_path, make_directory
from jaxprune.nn.host import Host
from jaxprune.open import Classifier
from jaxprune.reduction import Plan, standalone
from jaxprune.report import Section, findings, spread
from jaxprune.report.table import Table


class Measured(NamedTuple):
    """The measurements of all plans.

    Attributes:
      name: name of the network.
      rows: one per contestant.
      comparison: the results on images; None without images.
      class_names: of the images; empty without images.
      model: the network that is called dense.
      parts: of a detector, the times of its parts.
    """

    name: str
    rows: Table[BenchmarkRow]
    comparison: plans.Comparison | None
    class_names: Sequence[str]
    model: Any = None
    parts: Table[PartTime] = Table()


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Compares `config.plans` on the classifier of `config.run` or `config.model`, or on a model with random weights.

    Costs and speed are for one device. Accuracy is measured on all devices of `config.mesh`, if there are images, of
    the run or of `config.data`; of a segmentation network, `segment` measures mIoU, and of a detector `detect` AP. Of a
    network that spends by image each exit is measured, and thresholds for budgets; of a detector, its parts are timed
    apart too.
    """
    if networks.spends_by_image(config):
        return by_image.benchmark(config, workdir)
    measured = measure(config, workdir)
    title, name = "Plans side by side", "jaxprune benchmark"
    with reporting.report_section(workdir, measured.name, title, "benchmark", name=name) as section:
        describe(config, section, measured)
    speed_ups = {row.cost.plan: row.cost.promise.range for row in measured.rows}
    fastest = findings.standing_out(speed_ups)
    factor = {"speed-up": speed_ups[fastest].value} if fastest in speed_ups else {}
    return {"plans": len(config.plans), "fastest": fastest, **factor}


def measure(config: Config, workdir: Path, hard_at: Sequence[float] = ()) -> Measured:
    """Measures the plans, prints the results as a table, and writes it to `workdir`.

    Args:
      hard_at: fractions of the patches of smaller images, on which the network tells which images are hard; it has
        rows there too.
    """
    classifier = networks.with_head(config) if config.run or config.model.weights else None
    model = classifier.model if classifier else models.create(config.model.name, rngs=nnx.Rngs(config.seed))
    reduced = _plans(config, model)
    candidates = contestants(
        model, reduced, scorer=networks.guide(config, model) if reduced else None, seed=config.seed
    )
    if config.smaller_images:
        candidates |= on_smaller_images(candidates)
    if hard_at:
        candidates |= on_smaller_images(candidates, hard_at)
    candidates |= networks.rivals(config, model)
    if isinstance(model, ExitSegmenter):
        candidates[WITHOUT_EXITS] = contestant(model.without_exits())
    by_exits = _by_exits(config, candidates) if isinstance(model, ExitSegmenter) else {}
    measured, comparison, names = costs(candidates, config.batch_size, config.rounds, **by_exits), None, ()
    compares = classifier is not None and not isinstance(classifier.model, DenseNetwork)
    if classifier is not None and compares and inputs.has_images(classifier.origin, config):
        comparison, names = _compare(config, classifier, candidates), classifier.class_names
    rows = Table(BenchmarkRow(cost, comparison.result(cost.plan) if comparison else None) for cost in measured)
    make_directory(workdir)
    name = classifier.origin if classifier else config.model.name
    publish(f"{name}, batch {config.batch_size}", rows.flat(), workdir / "benchmark.csv")
    parts: Table[PartTime] = Table()
    if isinstance(model, MaskRCNN):
        parts = Table(part_times(model, config.batch_size, config.rounds))
        publish(f"{name}, parts of the dense network", parts.flat(), workdir / "parts.csv")
    return Measured(name, rows, comparison, names, model, parts)


def describe(config: Config, section: Section, measured: Measured) -> None:
    """Adds the measurements to a section of a report."""
    guided = f" from_scores drops patches by the scorer {config.scorer}." if config.scorer else ""
    section.text(
        f"Batch {config.batch_size} on {jax.devices()[0].device_kind}, medians of {config.rounds} rounds, each "
        "timing every plan once. The speed-up is computed within a round; `measured ÷ implied` is its "
        f"ratio to the speed-up that the FLOPs imply.{guided}"
    )
    images = measured.comparison.images if measured.comparison else 0
    page.describe(section, measured.rows, rounds=config.rounds, classes=len(measured.class_names), images=images)
    if measured.parts:
        section.table(
            measured.parts,
            caption=f"Parts of the dense network, compiled one by one; {spread.ranges(config.rounds)}. A plan makes "
            "the backbone alone cheaper.",
        )
    if measured.comparison:
        if measured.comparison.on_hard:
            section.text(plans_page.rivals(measured.model))
        if measured.comparison.token_counts:
            section.text(plans_page.TOKEN_COUNTS)
        plans_page.pictures(section, measured.comparison, measured.class_names)


def _plans(config: Config, model: Any) -> dict[str, Plan]:
    """The plans of the config; a network without tokens is measured alone, unless plans were asked for."""
    if isinstance(model, Host) or tuple(config.plans) != standalone():
        return networks.plans(config)
    print(f"A {type(model).__name__} has no tokens to reduce: it is measured without plans.")
    return {}


def _by_exits(config: Config, candidates: dict[str, Contestant]) -> dict[str, Any]:
    """How a network with exits is timed: on images of its run, if it is one, with GFLOPs by the tokens that go on."""
    of_run = config.run and as_path(config.run).is_dir() and not (config.img_size or config.data.source)
    images = segment.timed_images(config) if of_run else random_images
    batch = {name: images(candidate.model, config.batch_size) for name, candidate in candidates.items()}
    return {
        "images": images,
        "gflops": {name: gflops_on(candidate.model, batch[name]) for name, candidate in candidates.items()},
    }


def _compare(config: Config, classifier: Classifier, candidates: dict[str, Contestant]) -> plans.Comparison:
    config = inputs.with_data_of(classifier.origin, classifier.model.preprocessing, config)
    sample = inputs.sample(config, inputs.held_out(config, classifier))
    batches = inputs.eval_batches(config, sample, networks=[candidate.model for candidate in candidates.values()])
    (comparison,) = plans.compare(candidates, batches, inputs.mesh(config))
    return comparison
