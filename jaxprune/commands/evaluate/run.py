"""Evaluates a classifier on held-out images, dense and under plans, and writes a report."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxprune.commands.evaluate import by_image, page, pixels_or_objects
from jaxprune.commands.evaluate.settings import Settings
from jaxprune.commands.shared import inputs, networks, plans_page, reporting
from jaxprune.config import Config
from jaxprune.evaluate.collectors import plans
from jaxprune.evaluate.collectors.predictions import PredictionCollector, Predictions
from jaxprune.evaluate.contestants import Contestant, contestants, on_smaller_images
from jaxprune.open import Classifier, Run, open_classifier
from jaxprune.reduction import DENSE
from jaxprune.report.table import Table


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Evaluates the classifier of `config.run` or `config.model` on its own held-out data, or on `config.data`.

    The classifier and its plans see every image once, in one pass. A network that spends by image is evaluated at all
    its exits, and under thresholds for budgets. A segmentation network or a detector gets the test of its own command.
    """
    if networks.spends_by_image(config):
        return by_image.evaluate(config, workdir)
    if networks.is_dense(config):
        return pixels_or_objects.evaluate(config, workdir)
    classifier = networks.classifier(config)
    model, names, origin = classifier
    config = inputs.with_data_of(origin, model.preprocessing, config)
    reduced = networks.plans(config)
    scorer = networks.guide(config, model) if reduced else None
    candidates = contestants(model, reduced, scorer=scorer, seed=config.seed)
    if config.smaller_images:
        candidates |= on_smaller_images(candidates)
    candidates |= networks.rivals(config, model)
    summary, comparison = _on_held_out(classifier, candidates, workdir, config)
    if not config.plans:
        return summary
    rows = comparison.table(candidates)
    title, slug = "Under token-reduction plans", f"plans-{Path(origin).name}"
    with reporting.report_section(workdir, origin, title, slug) as section:
        plans_page.describe(section, rows, comparison, class_names=names, model=model)
    print(rows.without("rescued", "hard").brief())
    return summary | {
        f"accuracy, {name}": comparison.scores[name].accuracy.value for name in candidates if name != DENSE
    }


def assess(run: Path, workdir: Path) -> dict[str, Any]:
    """Evaluates the classifier in a run directory on its own data, and adds the results to the report in `workdir`."""
    classifier = open_classifier(Run(run))
    config = inputs.with_data_of(run, classifier.model.preprocessing, Settings.defaults())
    command = reporting.command("--config=configs/evaluate.py", f"--config.run={run}")
    summary, _ = _on_held_out(classifier, contestants(classifier.model, {}), workdir, config, command)
    return summary


def _on_held_out(
    classifier: Classifier, candidates: Mapping[str, Contestant], workdir: Path, config: Config, command: str = ""
) -> tuple[dict[str, Any], plans.Comparison]:
    """Runs the contestants, and adds the section on the classifier; returns its summary and the comparison of all."""
    model, names, origin = classifier
    source = inputs.held_out(config, classifier)
    allowed = inputs.allowed_classes(config, source)
    batches = inputs.eval_batches(config, source, networks=[candidate.model for candidate in candidates.values()])
    predicted = PredictionCollector(lambda outputs: outputs[DENSE]["probabilities"])
    comparison, predictions = plans.compare(
        candidates, batches, inputs.mesh(config), classes=allowed, also=[predicted], desc="evaluate"
    )
    counts = comparison.token_counts.get(DENSE)  # of a classifier that was trained with ATS
    with reporting.report_section(workdir, origin, "Evaluation", f"evaluate-{Path(origin).name}", command) as section:
        if allowed is not None:
            section.text(f"Predictions are restricted to the {len(allowed)} of {len(names)} classes of the images.")
        page.describe(section, predictions, names)
        if counts:
            (cells,) = Table([counts.cells()]).cells()
            section.table([{"plan": model.plan.text, **cells}], caption=plans_page.TOKEN_COUNTS)
        reporting.broken_files(section, source)
    return _summary(predictions) | (Table([counts.cells()]).cells()[0] if counts else {}), comparison


def _summary(predictions: Predictions) -> dict[str, Any]:
    accuracy = predictions.accuracy()
    ends = {"accuracy_low": accuracy.low, "accuracy_high": accuracy.high}
    return {"accuracy": accuracy.value, **ends, "images": len(predictions.labels)}
