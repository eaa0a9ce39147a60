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
from jaxprune.commands.shared import inputs, inspection, networks, reporting
from jaxprune.config import Config
from jaxprune.data.broken_examples import read_or_next
from jaxprune.data.crop_resize import prepare
from jaxprune.errors import UserError
from jaxprune.evaluate.collectors import pruning
from jaxprune.evaluate.collectors.ranking import BASELINES
from jaxprune.evaluate.forwards import pixels
from jaxprune.files import make_directory
from jaxprune.measures import insertion_deletion
from jaxprune.open import Classifier, ScorerSet
from jaxprune.report import findings, spread
from jaxprune.report.scorer_names import about_scorers
from jaxprune.report.table import Table
from jaxprune.scoring.parts.base import is_host

RANDOM, _RANKER = "random", "ltrp"


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
    pruned = measure(config, classifier, opened)
    rows = pruning.accuracies(model, opened.scorers, opened.size, pruned, config.keep_rates)
    kept, timing = pruning.num_kept(model, config.keep_rate), {"batch_size": config.batch_size, "rounds": config.rounds}
    timed = speeds(model, opened.scorers, opened.size, num_keep=kept, **timing)
    summary = page.by_scorer(rows, pruned, timed, model, config.keep_rate)
    make_directory(workdir)
    rows.write_csv(workdir / "prune.csv")
    summary.write_csv(workdir / "scorers.csv")
    about = about_scorers(config.scorers, proposal=config.proposal, weights=config.weights, host=origin)
    setting = page.Setting(model, names, opened.scorers, opened.size, config.keep_rate, about)
    with reporting.report_section(workdir, origin, "Pruned by scorers", f"prune-{Path(origin).name}") as section:
        section.text(
            f"{origin} on {len(pruned.labels)} held-out {_what(config)}, not trained with pruning. "
            + pruning.about(model)
        )
        page.describe(section, setting, rows, summary, pruned, timing=_timing(config))
        overlap = proposals_page.overlaps(setting, pruned)
        part, image_of = section.section("Do proposals agree?"), images_of(config, classifier)
        contrasts = proposals_page.describe(part, setting, pruned, overlap, config.keep_rates, image_of)
        cascades: Table[sanity_page.CascadeRow] = Table()
        if config.sanity and len(pruned.examples) > 1:
            cascades = _randomised(config, setting, pruned)
            part = section.section("Do scores depend on the image, and on what the network has learned?")
            sanity_page.describe(part, sanity_page.summary(opened.scorers, pruned.scores, cascades), cascades)
    for name, table in {"overlap": overlap, "contrasts": contrasts, "sanity": cascades}.items():
        if table:
            table.write_csv(workdir / f"{name}.csv")
    print(page.as_published(rows, summary).text())
    if config.rounds:
        print(f"speed-up at keep rate {config.keep_rate:g}, {_timing(config)}")
    at = {row.scorer: row.accuracy for row in rows if row.keep_rate == config.keep_rate}
    return {
        "images": len(pruned.labels),
        "keep rate": config.keep_rate,
        "accuracy, dense": rows[0].accuracy.value,
        **{f"accuracy, {scorer}": accuracy.value for scorer, accuracy in at.items()},
        "stands out": findings.standing_out(at),
    }


def completed(config: Config, classifier: Classifier) -> Config:
    """The config with baselines among its scorers, all keep rates in order, and the data of the classifier.

    Random is beside every scorer; what learns nothing, centre and norm, beside every ranker.
    """
    ranked = any(text.startswith(_RANKER) for text in config.scorers)
    scorers = inspection.with_baselines(config.scorers, (RANDOM, *BASELINES) if ranked else (RANDOM,))
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
        picture_indices=_spaced(len(images), pruning.DRAWN),
    )


def _randomised(config: Config, setting: page.Setting, pruned: pruning.Pruned) -> Table[sanity_page.CascadeRow]:
    """The scores of the images that are drawn, when the weights that scorers read are random."""
    images = np.stack([example.image for example in pruned.examples])
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


def _timing(config: Config) -> str:
    device = jax.devices()[0].device_kind
    turns = f"{spread.ranges(config.rounds)}; each round times all."
    return f"in batches of {config.batch_size} on {device}: {turns}" if config.rounds else ""
