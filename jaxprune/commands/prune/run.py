"""Prunes a classifier by scorers on held-out images, and writes tables and a report."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxprune.bench.scorers import speeds
from jaxprune.commands.prune import page, proposals_page, sanity_page
from jaxprune.commands.shared import inputs, networks, reporting
from jaxprune.config import Config
from jaxprune.data.broken import read_or_next
from jaxprune.data.crop_resize import prepare
from jaxprune.errors import UserError
from jaxprune.evaluate.collectors import pruning
from jaxprune.evaluate.forwards import pixels
from jaxprune.measures import insertion_deletion
from jaxprune.open import Classifier, ScorerSet
from jaxprune.report import Report, spread
from jaxprune.report.scorer_names import about_scorers
from jaxprune.report.table import as_text, write_csv
from jaxprune.scoring.parts.base import is_host

RANDOM = "random"


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Prunes the classifier of `config.run` or `config.model` by each of `config.scorers`, on held-out images."""
    classifier = networks.classifier(config)
    model, names, origin = classifier
    if not is_host(model):
        raise UserError(f"{origin} holds a {type(model).__name__}, which has no patches to prune: give a ViT.")
    if model.plan is not None:
        raise UserError(f"{origin} is trained with the plan {model.plan.text}: give a dense classifier.")
    config = completed(config, classifier)
    opened = networks.open_scorers(config, classifier)
    measured = measure(config, classifier, opened)
    rows = pruning.accuracies(model, opened.scorers, opened.size, measured, config.keep_rates)
    kept, timing = pruning.num_kept(model, config.keep_rate), {"batch_size": config.batch_size, "rounds": config.rounds}
    timed = speeds(model, opened.scorers, opened.size, num_keep=kept, **timing)
    summary = page.by_scorer(rows, measured, timed, model, config.keep_rate)
    workdir.mkdir(parents=True, exist_ok=True)
    write_csv(workdir / "prune.csv", rows)
    write_csv(workdir / "scorers.csv", summary)
    about = about_scorers(config.scorers, proposal=config.proposal, weights=config.weights, host=origin)
    setting = page.Setting(model, names, opened.scorers, opened.size, config.keep_rate, about)
    slug, document = f"prune-{Path(origin).name}", Report("jaxprune", origin)
    with reporting.report_section(workdir / "report.html", document, "Pruned by scorers", slug) as section:
        section.text(
            f"{origin} on {len(measured.labels)} held-out {_what(config)}, not trained with pruning. "
            + pruning.about(model)
        )
        page.describe(section, setting, rows, summary, measured, timing=_timing(config))
        overlap = proposals_page.overlaps(setting, measured)
        part, image_of = section.section("Do proposals agree?"), images_of(config, classifier)
        contrasts = proposals_page.describe(part, setting, measured, overlap, config.keep_rates, image_of)
        cascades: list[dict[str, Any]] = []
        if config.sanity and len(measured.shown) > 1:
            cascades = _randomised(config, setting, measured)
            part = section.section("Do scores depend on the image, and on what the network has learned?")
            sanity_page.describe(part, sanity_page.summary(opened.scorers, measured.scores, cascades), cascades)
    for name, table in {"overlap": overlap, "contrasts": contrasts, "sanity": cascades}.items():
        if table:
            write_csv(workdir / f"{name}.csv", table)
    print(as_text(page.as_published(rows, summary)))
    if config.rounds:
        print(f"speed-up at keep rate {config.keep_rate:g}, {_timing(config)}")
    at = {row["scorer"]: row["accuracy"] for row in rows if row["keep rate"] == config.keep_rate}
    best = max(at, key=lambda text: at[text])
    dense = {"images": len(measured.labels), "keep rate": config.keep_rate, "accuracy, dense": rows[0]["accuracy"]}
    by_chance = at[next(text for text in config.scorers if _is_random(text))]
    return {**dense, "best": best, "accuracy of the best": at[best], "accuracy, random": by_chance}


def completed(config: Config, classifier: Classifier) -> Config:
    """The config with Random among its scorers, all keep rates in order, and the data of the classifier."""
    scorers = tuple(config.scorers)
    scorers += () if any(map(_is_random, scorers)) else (RANDOM,)
    rates = sorted({*map(float, config.keep_rates), float(config.keep_rate)} - {1.0}, reverse=True)
    config = inputs.with_data_of(classifier.origin, classifier.model.preprocessing, config)
    return ConfigDict({**config.to_dict(), "scorers": scorers, "keep_rates": tuple(rates)})


def measure(config: Config, classifier: Classifier, opened: ScorerSet) -> pruning.Pruned:
    """Runs the classifier over an evenly spread sample of the held-out images of a `completed` config."""
    images, model = inputs.sample(config, inputs.held_out(config, classifier)), classifier.model
    return pruning.measure(
        model,
        opened.scorers,
        inputs.eval_batches(config, images),
        inputs.mesh(config),
        keep=[pruning.num_kept(model, rate) for rate in config.keep_rates],
        curve=insertion_deletion.counts(pruning.num_scored(model), config.curve_steps),
        seed=config.seed,
        shown=_spaced(len(images), pruning.SHOWN),
    )


def _randomised(config: Config, setting: page.Setting, measured: pruning.Pruned) -> list[dict[str, Any]]:
    """The scores of the images that are drawn, when the weights that scorers read are random."""
    images = np.stack([example.image for example in measured.shown])
    normalised = pixels(jax.numpy.asarray(images), setting.model.preprocessing)
    return sanity_page.cascade_rows(setting.scorers, normalised, seed=config.seed)


def _what(config: Config) -> str:
    if not config.data.num_frames:
        return "images"
    views = config.data.num_clips * config.data.num_crops
    return f"videos, {views} views each," if views > 1 else "videos"


def images_of(config: Config, classifier: Classifier) -> Callable[[int], np.ndarray]:
    """Returns what reads an image of `measure` by its index, as the classifier gets it."""
    images = functools.cache(lambda: inputs.sample(config, inputs.held_out(config, classifier)))
    return lambda index: prepare(read_or_next(images(), index)["image"], classifier.model.preprocessing)


def _spaced(num_images: int, count: int) -> Sequence[int]:
    return [index * num_images // count for index in range(count)]


def _is_random(scorer: str) -> bool:
    return scorer.partition(":")[0] == RANDOM


def _timing(config: Config) -> str:
    device = jax.devices()[0].device_kind
    turns = f"{spread.ranges(config.rounds)}; each round times all."
    return f"in batches of {config.batch_size} on {device}: {turns}" if config.rounds else ""
