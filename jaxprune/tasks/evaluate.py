"""Accuracy of a trained classifier on held-out data: overall, by class, and what it takes for what."""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune.analysis import plans, predictions
from jaxprune.analysis.forwards import probabilities
from jaxprune.bench.contestants import DENSE, contestants
from jaxprune.checkpoints.run import load_model
from jaxprune.config import Config
from jaxprune.evaluate import run_over
from jaxprune.tasks.setup import inputs, networks, reporting
from jaxprune.viz.report import Report
from jaxprune.viz.table import as_text

SETTINGS = {"batch_size": 64, "seed": 0, "mesh": "data=-1"}  # of an evaluation without a config


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Evaluates the run directory `config.run` on its own held-out data, or on what `config.data` names."""
    networks.classifier_card(config.run)
    report = workdir / "report.html"
    found = assess(Path(config.run), report, config)
    return found | (under_plans(config, report) if config.plans else {})


def assess(run: Path, report: Path, config: Config = None) -> dict[str, Any]:
    """Evaluates the classifier in a run directory, by default on its own data, and adds the findings to a report."""
    card = networks.classifier_card(run)
    config = ConfigDict(SETTINGS) if config is None else config
    names, config = list(card.class_names), inputs.with_data_of(run, config)
    source = inputs.held_out(config, run, names)
    model = load_model(run, img_size=config.get("img_size") or None)
    forwards = {"classes": probabilities(model, card.preprocessing.mean, card.preprocessing.std)}
    batches = inputs.eval_batches(config, source)
    (found,) = run_over(batches, forwards, [predictions.Predicted("classes", names)], inputs.mesh(config))
    page, shown = Report("jaxprune", str(run)), f"{reporting.command('configs/evaluate.py')} --config.run={run}"
    with reporting.report_section(report, page, "Evaluation", f"evaluate-{run.name}", shown) as section:
        predictions.describe(section, found, names)
        reporting.broken_files(section, source)
    return predictions.summarise(found)


def under_plans(config: Config, report: Path) -> dict[str, Any]:
    """Evaluates a classifier under each of `config.plans`, beside itself, and adds the findings to a report."""
    run, card = Path(config.run), networks.classifier_card(config.run)
    model = load_model(run, img_size=config.img_size or None)
    made = contestants(model, networks.plans(config), seed=config.seed)
    config = inputs.with_data_of(run, config)
    batches = inputs.eval_batches(config, inputs.source(config, "eval"), model.patch_embed.img_size)
    normal = {"mean": card.preprocessing.mean, "std": card.preprocessing.std}
    found = plans.compare(made, batches, inputs.mesh(config), class_names=card.class_names, **normal)
    rows = plans.table(made, found)
    page, title = Report("jaxprune", str(run)), "Under token-reduction plans"
    with reporting.report_section(report, page, title, f"plans-{run.name}") as section:
        plans.describe(section, rows, found)
    print(as_text(rows))
    return {f"accuracy, {name}": scores["accuracy"] for name, scores in found.scores.items() if name != DENSE}
