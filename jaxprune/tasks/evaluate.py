"""Accuracy of a trained classifier on held-out data: overall, by class, and what it takes for what."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxprune import parallel
from jaxprune.checkpoints.run import load_model, read_card
from jaxprune.config import Config
from jaxprune.config import data as defaults
from jaxprune.data.augment import normalize
from jaxprune.errors import UserError
from jaxprune.metrics import wilson_interval
from jaxprune.nn.params import merge, split
from jaxprune.tasks import plans, setup
from jaxprune.train.progress import progress
from jaxprune.viz import plots
from jaxprune.viz.pictures.prediction_card import prediction_card
from jaxprune.viz.report import Report
from jaxprune.viz.table import as_text

SHOWN = 8


class Outcome(NamedTuple):
    """What a classifier said about every held-out image.

    Attributes:
      labels, predictions: int (n,).
      confidences: of the predicted class, float (n,).
      cards: pictures of some images with what was said of them; wrong ones first.
    """

    labels: np.ndarray
    predictions: np.ndarray
    confidences: np.ndarray
    cards: list[np.ndarray]


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Evaluates the run directory `config.init` on its own held-out data, or on what `config.data` names."""
    if not config.init:
        raise UserError("Give --config.init=RUN, the run directory of a classifier.")
    run, report = Path(config.init), workdir / "report.html"
    summary = assess(run, report, data=config.data, batch_size=config.batch_size, img_size=config.img_size)
    return summary | (under_plans(config, run, report) if config.plans else {})


def under_plans(config: Config, run: Path, report: Path) -> dict[str, Any]:
    """Evaluates a classifier under each of `config.plans`, beside itself, and adds the findings to a report."""
    made = plans.contestants(load_model(run, img_size=config.img_size or None), config)
    data = data_of(run, config.data, config.img_size)
    source = setup.source(ConfigDict({"data": data, "seed": config.seed}), "eval")
    found = plans.compare(made, source, read_card(run), batch_size=config.batch_size, num_images=len(source))
    rows = [{"plan": name, "GFLOPs": c.gflops(), **found.scores[name]} for name, c in made.items()]
    page = Report("jaxprune", str(run))
    section = page.section("Under token-reduction plans", slug=f"plans-{run.name}")
    section.table(rows, highlight={"accuracy": "max"}, formats=".3g")
    points = {row["plan"]: ([row["GFLOPs"]], [row["accuracy"]]) for row in rows}
    section.figure(plots.scatter_plot(points, "GFLOPs", "accuracy", pareto=("min", "max")), "Accuracy against cost.")
    plans.show(section, found)
    section.command(setup.command())
    page.add_to(report)
    print(as_text(rows))
    return {f"accuracy, {name}": scores["accuracy"] for name, scores in found.scores.items() if name != plans.DENSE}


def data_of(run: Path, data: Config, img_size: int = 0) -> Config:
    """The data settings of a run, or `data` where that names a source; with another `img_size` if that is not 0."""
    chosen = data.to_dict() if data is not None and data.source else recorded_config(run)["data"]
    return ConfigDict({**defaults(), **chosen, **({"img_size": img_size} if img_size else {})})


def recorded_config(run: Path) -> dict[str, Any]:
    """The config that a run directory was made with."""
    return json.loads((run / "config.json").read_text())["config"]


def assess(run: Path, report: Path, *, data: Config = None, batch_size: int = 64, img_size: int = 0) -> dict[str, Any]:
    """Evaluates a run directory, at another resolution if `img_size` is given, and adds the findings to a report."""
    card = read_card(run)
    if card["kind"] != "model":
        raise UserError(f"{run} holds a pre-training model, which does not classify: fine-tune it first.")
    chosen = data_of(run, data, img_size)
    settings = ConfigDict({"data": chosen, "batch_size": batch_size, "seed": 0, "mesh": "data=-1"})
    source = setup.source(settings, "eval")
    names = list(card["class_names"])
    if source.num_classes != len(names):
        raise UserError(
            f"The data have {source.num_classes} classes and {run} knows {len(names)}: give the data it was trained on."
        )
    outcome = classify(run, settings, source, names, img_size or None)
    correct = outcome.predictions == outcome.labels
    low, high = wilson_interval(int(correct.sum()), len(correct))
    summary = {"accuracy": float(correct.mean()), "accuracy_low": low, "accuracy_high": high, "images": len(correct)}
    page = Report("jaxprune", str(run))
    section = page.section("Evaluation", slug=f"evaluate-{run.name}")
    _describe(section, outcome, names, summary)
    setup.broken_files(section, source)
    section.command(f"python -m jaxprune.main --config=configs/evaluate.py --config.init={run}")
    page.add_to(report)
    return summary


def classify(run: Path, settings: Config, source: Any, names: list[str], img_size: int | None = None) -> Outcome:
    """Runs the classifier over the held-out images."""
    card, parts = read_card(run), split(load_model(run, img_size=img_size))
    mesh = setup.mesh(settings)
    params = parallel.replicate(mesh, parts.params)

    @jax.jit
    def probabilities(params, images):
        logits, _ = merge(parts.graph, params, parts.rest)(normalize(images, card["mean"], card["std"]))
        return jax.nn.softmax(logits)

    labels, predictions, confidences, right, wrong = [], [], [], [], []
    batches = setup.eval_batches(settings, source)
    with progress("evaluate", len(batches)) as bar:
        for batch in batches:
            placed = parallel.place_batch(mesh, {"image": batch["image"]})
            confidence = np.asarray(probabilities(params, placed["image"]))[batch["valid"]]
            truth, images = batch["label"][batch["valid"]], batch["image"][batch["valid"]]
            said = confidence.argmax(-1)
            labels.append(truth)
            predictions.append(said)
            confidences.append(confidence.max(-1))
            for row, image in enumerate(images):
                shelf = right if said[row] == truth[row] else wrong
                if len(shelf) < SHOWN:
                    shelf.append(prediction_card(image, names, confidence[row], truth=int(truth[row])))
            bar.update(len(truth))
    half = SHOWN // 2
    cards = wrong[: SHOWN - min(half, len(right))] + right[: SHOWN - min(half, len(wrong))]
    return Outcome(np.concatenate(labels), np.concatenate(predictions), np.concatenate(confidences), cards[:SHOWN])


def _describe(section: Any, outcome: Outcome, names: list[str], summary: dict[str, Any]) -> None:
    half = (summary["accuracy_high"] - summary["accuracy_low"]) / 2
    section.metric_tiles({"accuracy": (f"{summary['accuracy']:.1%}", f"± {half:.1%}, {summary['images']} images")})
    matrix = np.zeros((len(names), len(names)), int)
    np.add.at(matrix, (outcome.labels, outcome.predictions), 1)
    totals = np.maximum(matrix.sum(1), 1)
    rows = [
        {"class": name, "accuracy": matrix[i, i] / totals[i], "images": int(matrix[i].sum())}
        for i, name in enumerate(names)
    ]
    section.table(rows, caption="By class.", highlight={"accuracy": "max"}, formats={"accuracy": ".1%"})
    section.figure(plots.confusion_matrix(matrix, names), "What was taken for what.")
    section.gallery(outcome.cards, columns=2)
