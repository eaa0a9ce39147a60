"""Trains a segmentation network and tests it; or tests a trained one, dense and under plans."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune.commands.segment import features, inputs, networks
from jaxprune.commands.segment.page import Tested, describe
from jaxprune.commands.segment.parameter_groups import grouped_optimizer
from jaxprune.commands.segment.settings import test_time
from jaxprune.commands.segment.timed_images import of_source
from jaxprune.commands.shared import dense_networks
from jaxprune.commands.shared import inputs as shared_inputs
from jaxprune.commands.shared.dense_settings import preprocessing
from jaxprune.commands.shared.training import Length, Training, begin, interrupted
from jaxprune.config import Config
from jaxprune.data.augment_maps import augment_maps
from jaxprune.dense import ExitSegmenter
from jaxprune.evaluate import Call
from jaxprune.evaluate.collectors.segmentation import Outcome
from jaxprune.evaluate.contestants import gflops, random_images
from jaxprune.evaluate.segmentation import exits
from jaxprune.evaluate.segmentation.measure import measure
from jaxprune.measures.segmentation import intervals, scores
from jaxprune.nn.batch_norm import BATCH_STATS, RunningStats, batch_stats
from jaxprune.nn.params import Split, merge, split, variables
from jaxprune.train.poly_schedule import warmup_poly
from jaxprune.train.state import TrainState
from jaxprune.train.step import LossFn
from jaxprune.train.writer import Writer


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Trains a network or tests one; writes checkpoints, metrics, `confusion.csv` and a report to `workdir`."""
    if config.segmenter:
        return test(config, workdir)
    if summary := begin(config, workdir):
        return summary
    training = _training(config, workdir)
    network = networks.new(config, training.train.num_classes)
    parts, params, frozen = dense_networks.learner(config, network, workdir, training.train.class_names)
    running = _statistics(network, frozen=config.frozen)

    calls: dict[Any, Call] = {}

    def outcome(state: TrainState, pictures: int = 0) -> Outcome:
        arrays = {"model": (parts, {**frozen, **state.params, **state.extra.get(BATCH_STATS, {})})}
        return measured(config, arrays, training.held_out, training.mesh, pictures, calls=calls)["model"]

    last: dict[str, Outcome] = {}

    def evaluate(step: int, state: TrainState, writer: Writer) -> None:
        last["model"] = outcome(state, config.pictures)
        writer.metrics(step, "eval", _metrics(last["model"]))

    if config.frozen:
        columns = features.of_frozen(network, training.train, config, training.mesh)
        batches, loss_fn = features.batches(columns, config), _loss_of_features(config, parts, frozen, running)
    else:
        batches, loss_fn = inputs.train_batches(config, training.train), _loss(config, parts, running)
    result = training.fit(
        params,
        loss_fn,
        grouped_optimizer(config, params, network, training.schedule),
        [training.every(config.eval_every, evaluate)],
        keepers=(RunningStats(running),) if running else (),
        batches=batches,
    )
    if stopped := interrupted(result):
        return stopped
    tested = last.get("model") or outcome(result.state, config.pictures)
    about = {"plan": dense_networks.plan_text(network), "classes": training.train.num_classes}
    summary = {**training.outcome(result), **_scores(tested), **about}
    names = tuple(training.train.class_names)
    tests = {"model": Tested(tested, _cost(network, tested))}
    page = functools.partial(describe, tests=tests, rules=inputs.rules(config), class_names=names)
    return training.conclude(summary, page)


def _training(config: Config, workdir: Path) -> Training:
    train, held_out = inputs.source(config, "train"), inputs.source(config, "eval")
    settings = config.optimizer
    names = ("power", "min_lr", "warmup_steps", "warmup_ratio")
    schedule = warmup_poly(settings.lr, config.steps, **{name: settings[name] for name in names})
    steps = Length(max(len(train) // config.batch_size, 1), config.steps)
    return Training(config, workdir, train, held_out, steps, schedule, shared_inputs.mesh(config))


def _statistics(network: Any, *, frozen: bool) -> dict[str, jax.Array]:
    """The running statistics that training moves."""
    return {
        name: variable[...]
        for name, variable in variables(network).items()
        if isinstance(variable, nnx.BatchStat) and not (frozen and name.startswith(dense_networks.ENCODER))
    }


def _loss(config: Config, parts: Split, running: dict[str, jax.Array]) -> LossFn:
    data = config.data
    pixels = {"flip": data.flip, "mean": tuple(data.mean), "std": tuple(data.std)}

    def loss_fn(params, batch, key):
        augment_key, model_key = jax.random.split(key)
        images, labels = batch["image"], batch["label_map"]
        extents = batch.get("extent")
        if extents is None:
            extents = jnp.broadcast_to(jnp.asarray(images.shape[1:3], jnp.int32), (len(images), 2))
        images, labels = augment_maps(augment_key, images, labels, extents, **pixels)
        network = merge(parts.graph, params, parts.rest)
        loss, shares = network.loss(images, labels, valid_only=config.valid_only, train=True, key=model_key)
        return loss, _reported(network, shares, running)

    return loss_fn


def _loss_of_features(
    config: Config, parts: Split, frozen: dict[str, jax.Array], running: dict[str, jax.Array]
) -> LossFn:
    def loss_fn(params, batch, key):
        network = merge(parts.graph, {**params, **frozen}, parts.rest)
        count = sum(name.startswith("features_") for name in batch)
        maps = [batch[features.FEATURES.format(level)].astype(jnp.float32) for level in range(count)]
        logits = network.head_logits(maps, train=True, key=key)
        labels = batch["label_map"].astype(jnp.int32)
        loss, shares = network.loss_of(logits, labels, valid_only=config.valid_only)
        return loss, _reported(network, shares, running)

    return loss_fn


def _reported(network: Any, shares: Any, running: dict[str, jax.Array]) -> dict[str, Any]:
    """What a step logs, and the statistics of its batch."""
    metrics = {f"loss_{name}": value for name, value in shares.losses.items()} if len(shares.losses) > 1 else {}
    metrics |= {f"accuracy_{name}": value for name, value in shares.accuracy.items()}
    if running:
        after = split(network).rest
        metrics[BATCH_STATS] = batch_stats({name: after[name] for name in running}, running)
    return metrics


def measured(
    config: Config,
    contestants: dict,
    source: Any,
    mesh: Any,
    pictures: int,
    sizes: dict[str, Any] | None = None,
    calls: dict[Any, Call] | None = None,
) -> dict[str, Outcome]:
    """Returns what networks make of a source, by name; see `evaluate.segmentation.measure`."""
    record = preprocessing(config)
    return measure(
        contestants,
        source,
        test_time(config),
        record,
        mesh,
        batch_size=config.test.batch_size or config.batch_size,
        sizes=sizes,
        pictures=pictures,
        calls=calls,
        num_threads=config.data.num_threads,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )


def _metrics(outcome: Outcome) -> dict[str, float]:
    scored = scores(outcome.confusion)
    return {"miou": scored.mean_iou, "macc": scored.mean_accuracy, "aacc": scored.pixel_accuracy}


def _scores(outcome: Outcome) -> dict[str, Any]:
    """The summary of a test: scores with their intervals, and the pixels without a label."""
    spans = intervals(outcome.areas)
    named = {"miou": spans.mean_iou, "macc": spans.mean_accuracy, "aacc": spans.pixel_accuracy}
    ends = {f"{name}_{end}": getattr(span, end) for name, span in named.items() for end in ("low", "high")}
    labelled = int(outcome.confusion.sum())
    return {
        **{name: span.value for name, span in named.items()},
        **ends,
        "void_share": outcome.void / max(outcome.void + labelled, 1),
        "images": len(outcome.index),
    }


def _cost(network: Any, outcome: Outcome) -> float:
    """GFLOPs of an image or window; of a network with exits, by the tokens that went on in the test."""
    return exits.gflops_of(network, outcome.rows) if outcome.rows else gflops(network)


def _beside(outcome: Outcome) -> dict[str, Any]:
    counts = {"tokens": exits.stayed(outcome.rows)} if outcome.rows else {}
    return {"agreement": float(np.mean(outcome.agreement)), **counts}


def _timed_images(config: Config, source: Any, by_plan: dict[str, Any]) -> Any:
    """What networks read when they are timed: with exits among them, images of the test."""
    if not any(isinstance(network, ExitSegmenter) for network in by_plan.values()):
        return random_images
    return of_source(config, source)


def test(config: Config, workdir: Path, rivals: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Tests the network of `config.segmenter`, and the same under plans.

    Args:
      rivals: networks to test beside it, by name, instead of those under plans.
    """
    network, class_names = networks.trained(config)
    config = networks.with_recorded(config, network)
    source = inputs.source(config, "eval")
    shared_inputs.require_classes(source, len(class_names), config.segmenter, class_names)
    by_plan = dense_networks.under_plans(config, network, rivals)
    arrays, mesh = dense_networks.arrays(by_plan), shared_inputs.mesh(config)
    sizes = {name: segmenter.preprocessing.img_size for name, segmenter in by_plan.items()}
    return dense_networks.conclude_test(
        config,
        workdir,
        by_plan,
        measured(config, arrays, source, mesh, config.pictures, sizes),
        source,
        cost=_cost,
        images=_timed_images(config, source, by_plan),
        scores=_scores,
        beside=_beside,
        describe=functools.partial(describe, rules=inputs.rules(config), class_names=class_names),
    )
