"""Trains a ranker on pseudo labels that an autoencoder makes on the fly."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from jaxprune import metrics, parallel
from jaxprune.checkpoints.build import build
from jaxprune.checkpoints.run import write_card
from jaxprune.commands import pretrain
from jaxprune.commands.shared import inputs
from jaxprune.commands.shared.training import Training, begin, build_optimizer, interrupted
from jaxprune.commands.train_ranker.page import describe
from jaxprune.commands.train_ranker.settings import PRETRAIN, label_model, label_options
from jaxprune.config import Config
from jaxprune.data.augment import random_flip
from jaxprune.errors import UserError
from jaxprune.evaluate import Averages, Forward, Stacked, run_over
from jaxprune.evaluate.collectors.ranking import quality, recall_over_centre
from jaxprune.nn.batch_norm import BATCH_STATS, RunningStats, batch_stats
from jaxprune.nn.params import Split, merge, split
from jaxprune.open.framework import abstract
from jaxprune.ranking import ConvRanker, pseudo_labels
from jaxprune.ranking.labels import require_order
from jaxprune.ranking.losses_by_name import ranking_loss
from jaxprune.ranking.warm_start import begin_as_encoder
from jaxprune.train.state import TrainState
from jaxprune.train.step import FIXED
from jaxprune.train.writer import Writer


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Trains a ranker as configured, and writes checkpoints, metrics, pictures and a report to `workdir`."""
    ranked = nnx.eval_shape(lambda: build("ranker", config.ranker.to_dict(), rngs=nnx.Rngs(0)))
    require_order(math.prod(ranked.grid), config.labels.mask_ratio)
    if summary := begin(config, workdir):
        return summary
    loss = ranking_loss(config.loss, **config.loss_options)
    if not config.label_model and (stopped := _pretrain(config, workdir / PRETRAIN)):
        return stopped
    labels_from, training = label_model(config, workdir), Training.of(config, workdir)
    ranker = build("ranker", config.ranker.to_dict(), dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    _check(config, ranker, labels_from)
    frozen = {**labels_from.params, **labels_from.rest}
    if config.warm_start:
        begin_as_encoder(ranker, frozen)
    preprocessing = ranker.preprocessing = inputs.preprocessing(config)
    write_card(workdir, ranker)
    parts, frozen = split(ranker), parallel.replicate(training.mesh, frozen)
    # A ViT's fixed tables do not change; a ConvNet's batch statistics do.
    running = parts.rest if isinstance(ranker, ConvRanker) else {}
    options = {**label_options(config), "shards": parallel.batch_parts(training.mesh)}

    call = quality(parts, labels_from, preprocessing, loss, sparse=config.sparse, **options)

    def evaluate(step: int, state: TrainState, writer: Writer) -> None:
        arrays = {"ranker": state.params, "running": state.extra.get(BATCH_STATS, {}), "label_model": frozen}
        forwards = {"ranker": Forward(call, arrays)}
        batches = training.held_out_batches()
        collectors = [Averages("ranker"), Stacked("ranker")]
        averages, (results, _) = run_over(batches, forwards, collectors, training.mesh, desc="held-out")
        writer.metrics(step, "eval", {**averages, **recall_over_centre(results)})

    def loss_fn(params, batch, key):
        flip_key, mask_key = jax.random.split(key)
        images = random_flip(flip_key, batch["image"]) if config.flip else batch["image"]
        images = inputs.normalized(config, images)
        framework = merge(labels_from.graph, batch[FIXED], {})
        relevance, ids_keep, _ = pseudo_labels(framework, images, key=mask_key, **options)
        network = merge(parts.graph, params, parts.rest)
        scores = network.scores(images, ids_keep if config.sparse else None, train=True)
        visible_scores = jnp.take_along_axis(scores, ids_keep, axis=1)
        reported: dict[str, Any] = {"tau": metrics.kendall_tau(visible_scores, relevance).mean()}
        if running:
            reported[BATCH_STATS] = batch_stats(split(network).rest, running)
        return loss(visible_scores, relevance).mean(), reported

    result = training.fit(
        parts.params,
        loss_fn,
        build_optimizer(config, training.schedule, parts.params),
        [training.every(config.eval_every, evaluate)],
        fixed=frozen,
        keepers=(RunningStats(running),) if running else (),
    )
    return interrupted(result) or training.conclude(training.outcome(result), describe)


def _pretrain(config: Config, workdir: Path) -> dict[str, Any] | None:
    """Pre-trains the autoencoder if needed; returns the summary if that was interrupted."""
    settings = ConfigDict(config.pretrain.to_dict())
    settings.seed = config.seed
    summary = pretrain.run(settings, workdir)
    return {"phase": PRETRAIN, **summary} if summary.get("stopped") else None


def _check(config: Config, ranker: Any, labels_from: Split) -> None:
    autoencoder = abstract(labels_from).encoder.patch_embed
    if (autoencoder.img_size, autoencoder.grid) != (ranker.img_size, ranker.grid):
        raise UserError(
            f"The ranker has img_size {ranker.img_size} and grid {ranker.grid}, the autoencoder {autoencoder.img_size} "
            f"and {autoencoder.grid}: give config.ranker the autoencoder's img_size and patch_size."
        )
    if config.sparse and isinstance(ranker, ConvRanker):
        raise UserError("A ConvNet needs whole images: a ConvNet ranker needs config.sparse=False.")
