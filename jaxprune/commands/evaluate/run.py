"""Evaluates a classifier on held-out images, dense and under plans, and writes a report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxprune.commands.evaluate import by_features, by_image, page, pixels_or_objects
from jaxprune.commands.evaluate.settings import Settings
from jaxprune.commands.shared import inputs, networks, plans_page, reporting
from jaxprune.config import Config
from jaxprune.data.source import Source
from jaxprune.errors import UserError
from jaxprune.evaluate.collectors import plans
from jaxprune.evaluate.collectors.predictions import PredictionCollector, Predictions
from jaxprune.evaluate.contestants import Contestant, contestants, on_smaller_images
from jaxprune.open import Classifier, Run, open_classifier
from jaxprune.reduction import DENSE
from jaxprune.report.table import Table


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Evaluates the classifier of `config.run` or `config.model` on its own held-out data, or on `config.data`.

    The classifier and its plans see every image once, in one pass. Plans on a network without a classifier are
    evaluated by what its features retrieve. A network that spends by image is evaluated at all
    its exits, and under thresholds for budgets. A segmentation network or a detector gets the test of its own command.
    """
    if networks.spends_by_image(config):
        return by_image.evaluate(config, workdir)
    if networks.is_dense(config):
        return pixels_or_objects.evaluate(config, workdir)
    classifier = networks.classifier(config, features=True)
    model, names, origin = classifier
    config = inputs.with_data_of(origin, model.preprocessing, config)
    if not (model.num_classes or config.plans):
        raise UserError(
            f"{origin} has no classifier, so its features are compared under plans: give --config.plans, or fine-tune "
            "it first."
        )
    reduced = networks.plans(config)
    scorer = networks.guide(config, model) if reduced else None
    candidates = contestants(model, reduced, scorer=scorer, seed=config.seed)
    if config.smaller_images:
        candidates |= on_smaller_images(candidates)
    candidates |= networks.rivals(config, model)
    if not model.num_classes:
        return by_features.evaluate(candidates, origin, config, workdir)
    tested = _on_held_out(classifier, candidates, config)
    summary = _summary(tested)
    if config.plans:  # what the command was run for comes first
        rows = tested.comparison.table(candidates)
        title, slug = "Under token-reduction plans", f"plans-{Path(origin).name}"
        with reporting.report_section(workdir, origin, title, slug) as section:
            plans_page.describe(
                section, rows, tested.comparison, class_names=names, model=model, allowed=tested.allowed
            )
        print(rows.without("rescued", "hard").brief())
        scores = tested.comparison.scores
        summary |= {f"accuracy, {name}": scores[name].accuracy.value for name in candidates if name != DENSE}
    _describe(tested, classifier, workdir)
    return summary


def assess(run: Path, workdir: Path) -> dict[str, Any]:
    """Evaluates the classifier in a run directory on its own data, and adds the results to the report in `workdir`."""
    classifier = open_classifier(Run(run))
    config = inputs.with_data_of(run, classifier.model.preprocessing, Settings.defaults())
    tested = _on_held_out(classifier, contestants(classifier.model, {}), config)
    _describe(tested, classifier, workdir, reporting.command("--config=configs/evaluate.py", f"--config.run={run}"))
    return _summary(tested)


class _Tested(NamedTuple):
    """The held-out images that contestants were run on, and what came out.

    Attributes:
      source: the images.
      allowed: the classes that predictions are restricted to, or None.
      predictions: of the dense network.
      comparison: of all contestants.
    """

    source: Source
    allowed: Sequence[int] | None
    predictions: Predictions
    comparison: plans.Comparison

    @property
    def tokens(self) -> dict[str, Any]:
        """How many tokens the network kept by itself, as cells of a table, if it was trained with ATS."""
        counts = self.comparison.token_counts.get(DENSE)
        return Table([counts.cells()]).cells()[0] if counts else {}


def _on_held_out(classifier: Classifier, candidates: Mapping[str, Contestant], config: Config) -> _Tested:
    """Runs the contestants."""
    source = inputs.held_out(config, classifier)
    allowed = inputs.allowed_classes(config, source)
    batches = inputs.eval_batches(config, source, networks=[candidate.model for candidate in candidates.values()])
    predicted = PredictionCollector(lambda outputs: outputs[DENSE]["probabilities"])
    comparison, predictions = plans.compare(
        candidates, batches, inputs.mesh(config), classes=allowed, also=[predicted], desc="evaluate"
    )
    return _Tested(source, allowed, predictions, comparison)


def _describe(tested: _Tested, classifier: Classifier, workdir: Path, command: str = "") -> None:
    """Adds the section on the classifier to the report."""
    model, names, origin = classifier
    with reporting.report_section(workdir, origin, "Evaluation", f"evaluate-{Path(origin).name}", command) as section:
        if tested.allowed is not None:
            section.text(
                f"Predictions are restricted to the {len(tested.allowed)} of {len(names)} classes of the images."
            )
        page.describe(section, tested.predictions, names, allowed=tested.allowed)
        if tested.tokens:
            section.table([{"plan": model.plan.text, **tested.tokens}], caption=plans_page.TOKEN_COUNTS)
        reporting.broken_files(section, tested.source)


def _summary(tested: _Tested) -> dict[str, Any]:
    accuracy = tested.predictions.accuracy()
    ends = {"accuracy_low": accuracy.low, "accuracy_high": accuracy.high}
    return {"accuracy": accuracy.value, **ends, "images": len(tested.predictions.labels), **tested.tokens}
