"""Evaluates a classifier on held-out images, dense and under plans, and writes a report."""

from pathlib import Path
from typing import Any

from jaxprune.commands.evaluate.settings import Settings
from jaxprune.commands.shared import inputs, networks, plans_page, reporting
from jaxprune.config import Config
from jaxprune.evaluate import run_over
from jaxprune.evaluate.collectors import plans, predictions
from jaxprune.evaluate.collectors.token_counts import RealisedRows, is_bounded
from jaxprune.evaluate.contestants import contestant, contestants
from jaxprune.evaluate.forwards import probabilities, under_plan
from jaxprune.open import Classifier, Run, open_classifier
from jaxprune.reduction import DENSE
from jaxprune.report import Report
from jaxprune.report.table import as_text

_PLAN = "plan"  # name of the forward function of a plan with variable row counts


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Evaluates the classifier of `config.run` or `config.model` on its own held-out data, or on `config.data`."""
    classifier, report = networks.classifier(config), workdir / "report.html"
    config = inputs.with_data_of(classifier.origin, classifier.model.preprocessing, config)
    summary = _on_held_out(classifier, report, config)
    return summary | (under_plans(classifier, report, config) if config.plans else {})


def assess(run: Path, report: Path) -> dict[str, Any]:
    """Evaluates the classifier in a run directory on its own data, and adds the results to a report."""
    classifier = open_classifier(Run(run))
    config = inputs.with_data_of(run, classifier.model.preprocessing, Settings.defaults())
    return _on_held_out(classifier, report, config, f"{reporting.command('configs/evaluate.py')} --config.run={run}")


def _on_held_out(classifier: Classifier, report: Path, config: Config, command: str = "") -> dict[str, Any]:
    model, names, origin = classifier
    source = inputs.held_out(config, classifier)
    allowed = inputs.allowed_classes(config, source)
    batches, forwards = inputs.eval_batches(config, source), {"classes": probabilities(model, allowed)}
    collectors: list[Any] = [predictions.Predicted("classes", names)]
    if is_bounded(model):
        forwards[_PLAN] = under_plan(contestant(model), allowed)
        collectors.append(RealisedRows({_PLAN: model}))
    predicted, *token_counts = run_over(batches, forwards, collectors, inputs.mesh(config))
    realised = {name: value for rows in token_counts for name, value in rows[_PLAN].columns().items()}
    document, slug = Report("jaxprune", origin), f"evaluate-{Path(origin).name}"
    with reporting.report_section(report, document, "Evaluation", slug, command) as section:
        if allowed is not None:
            section.text(f"Predictions are restricted to the {len(allowed)} of {len(names)} classes of the images.")
        predictions.describe(section, predicted, names)
        if realised:
            section.table([{"plan": model.plan.text, **realised}], caption=plans.ROWS)
        reporting.broken_files(section, source)
    return {**predictions.summarise(predicted), **realised}


def under_plans(classifier: Classifier, report: Path, config: Config) -> dict[str, Any]:
    """Evaluates a classifier dense and under each of `config.plans`, and adds the results to a report."""
    model, names, origin = classifier
    candidates = contestants(model, networks.plans(config), scorer=networks.guide(config, model), seed=config.seed)
    source = inputs.held_out(config, classifier)
    allowed, batches = inputs.allowed_classes(config, source), inputs.eval_batches(config, source)
    comparison = plans.compare(candidates, batches, inputs.mesh(config), class_names=names, classes=allowed)
    rows = plans.table(candidates, comparison)
    document, title = Report("jaxprune", origin), "Under token-reduction plans"
    with reporting.report_section(report, document, title, f"plans-{Path(origin).name}") as section:
        plans_page.describe(section, rows, comparison, classes=len(names))
    print(as_text(rows))
    return {f"accuracy, {name}": scores["accuracy"] for name, scores in comparison.scores.items() if name != DENSE}
