"""Trains a detector and tests it; or tests a trained one, dense and under plans."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import optax

from jaxprune.commands.detect import inputs, networks
from jaxprune.commands.detect.page import KINDS, Tested, describe
from jaxprune.commands.shared import dense_networks
from jaxprune.commands.shared import inputs as shared_inputs
from jaxprune.commands.shared.dense_settings import preprocessing
from jaxprune.commands.shared.training import Length, Training, begin, interrupted
from jaxprune.config import Config
from jaxprune.data.augment_objects import detector_input
from jaxprune.data.objects.truth import Truth
from jaxprune.evaluate import Call
from jaxprune.evaluate.contestants import gflops
from jaxprune.evaluate.detection import DetectionOutcome, measure
from jaxprune.measures.average_precision import library
from jaxprune.measures.detection_matches import at_overlap, interval
from jaxprune.nn.params import Split, merge
from jaxprune.train.detection_optimizer import decays, warmup_steps
from jaxprune.train.encoder_rates import rate_scales
from jaxprune.train.optimizer import adamw
from jaxprune.train.state import TrainState
from jaxprune.train.step import LossFn
from jaxprune.train.writer import Writer


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Trains a detector or tests one; writes checkpoints, metrics, `classes.csv` and a report to `workdir`."""
    library()  # before hours of training, and not after them
    if config.detector:
        return test(config, workdir)
    if summary := begin(config, workdir):
        return summary
    training = _training(config, workdir)
    network = networks.new(config, training.train.num_classes)
    parts, params, frozen = dense_networks.learner(config, network, workdir, training.train.class_names)
    truth = Truth.of(training.held_out)
    inputs.require_masks(training.train, truth, config.data)

    calls: dict[Any, Call] = {}

    def outcome(state: TrainState, last: bool) -> DetectionOutcome:
        arrays = {"model": (parts, {**frozen, **state.params})}
        return measured(config, arrays, training.held_out, truth, training.mesh, last, calls=calls)["model"]

    newest: dict[int, DetectionOutcome] = {}  # by its step; the test at the end need not be repeated

    def evaluate(step: int, state: TrainState, writer: Writer) -> None:
        newest.clear()
        newest[step] = outcome(state, step == training.steps.total)
        writer.metrics(step, "eval", _metrics(newest[step]))

    result = training.fit(
        params,
        _loss(config, parts, frozen),
        _optimizer(config, params, network, training),
        [training.every(config.eval_every, evaluate)],
        batches=inputs.train_batches(config, training.train),
    )
    if stopped := interrupted(result):
        return stopped
    at_end = newest.get(result.step)
    if at_end is None or not at_end.matches:
        at_end = outcome(result.state, True)
    about = {"plan": dense_networks.plan_text(network), "classes": training.train.num_classes}
    summary = {**training.outcome(result), **_scores(at_end), **about}
    summary["parameters"] = sum(int(x.size) for x in parts.params.values())
    tests = {"model": Tested(at_end, gflops(network))}
    page = functools.partial(describe, tests=tests, truth=truth, class_names=tuple(training.train.class_names))
    return training.conclude(summary, page)


def _training(config: Config, workdir: Path) -> Training:
    train, held_out = inputs.source(config, "train"), inputs.source(config, "eval")
    inputs.require_same_classes(train.class_names, held_out, "those of training")
    inputs.require_room(train, config.data)
    settings = config.optimizer
    schedule = warmup_steps(
        settings.lr,
        config.steps,
        milestones=[round(share * config.steps) for share in settings.milestones],
        gamma=settings.gamma,
        warmup=settings.warmup_steps,
        warmup_factor=settings.warmup_ratio,
    )
    steps = Length(max(len(train) // config.batch_size, 1), config.steps)
    return Training(config, workdir, train, held_out, steps, schedule, shared_inputs.mesh(config))


def _optimizer(
    config: Config, params: dict[str, Any], network: Any, training: Training
) -> optax.GradientTransformation:
    """AdamW as detectron2 trains ViTDet: rates by layer, and what decays."""
    settings, names = config.optimizer, list(params)
    return adamw(
        training.schedule,
        b1=settings.b1,
        b2=settings.b2,
        weight_decay=settings.weight_decay,
        decay_mask=decays(names),
        layer_scales=rate_scales(network, names, settings.layer_decay),
        clip_norm=settings.clip_norm or None,
    )


def _loss(config: Config, parts: Split, frozen: dict[str, jax.Array]) -> LossFn:
    pixels = {"mean": tuple(config.data.mean), "std": tuple(config.data.std)}

    def loss_fn(params, batch, key):
        images, sizes, objects = detector_input(batch, **pixels)
        network = merge(parts.graph, {**params, **frozen}, parts.rest)
        if config.frozen:  # the encoder computes as in the test
            maps = network.maps(images)
            loss, shares = network.loss_of(maps, images, objects, sizes=sizes, key=key)
        else:
            loss, shares = network.loss(images, objects, sizes=sizes, train=True, key=key)
        return loss, dict(shares.losses)

    return loss_fn


def measured(
    config: Config,
    arrays: Any,
    source: Any,
    truth: Truth,
    mesh: Any,
    last: bool = True,
    sizes: dict[str, tuple[int, int]] | None = None,
    calls: dict[Any, Call] | None = None,
) -> dict[str, DetectionOutcome]:
    """Returns what detectors find in a source, by name; see `evaluate.detection`.

    Args:
      arrays: {name: (structure, arrays)} of the detectors.
      source: images with objects.
      truth: the objects of the source.
      mesh: devices that share a batch.
      last: whether intervals and pictures are wanted.
      sizes: {name: (height, width)} of networks that read smaller images.
      calls: see `evaluate.detection.measure`.
    """
    return measure(
        arrays,
        source,
        truth,
        preprocessing(config),
        mesh,
        batch_size=config.test_batch or config.batch_size,
        sizes=sizes,
        masks=config.data.masks != "none",
        intervals=last,
        pictures=config.pictures if last else 0,
        calls=calls,
        num_threads=config.data.num_threads,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )


def _metrics(outcome: DetectionOutcome) -> dict[str, float]:
    """The numbers of COCO's protocol that papers quote, by name; without those of areas that no object has."""
    return {
        f"{KINDS[kind]}_{name}": precision.summary[name]
        for kind, precision in outcome.precision.items()
        for name in ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")
        if precision.summary[name] >= 0 or name == "AP"
    }


def _scores(outcome: DetectionOutcome) -> dict[str, Any]:
    """The summary of a test: average precision with its intervals."""
    scores: dict[str, Any] = {**_metrics(outcome), "images": outcome.images, "detections": outcome.detections}
    for kind, matched in outcome.matches.items():
        for name, part in (("AP", matched), ("AP50", at_overlap(matched, 0.5))):
            span = interval(part)
            scores |= {f"{KINDS[kind]}_{name}_{end}": getattr(span, end) for end in ("low", "high")}
    return scores


def test(config: Config, workdir: Path, rivals: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Tests the network of `config.detector`, and the same under plans.

    Args:
      rivals: networks to test beside it, by name, instead of those under plans.
    """
    network, class_names = networks.trained(config)
    config = networks.with_recorded(config, network)
    if network.mask_head is None:
        config.data.masks = "none"
    source = inputs.source(config, "eval")
    inputs.require_same_classes(class_names, source, config.detector)
    truth = Truth.of(source)
    inputs.require_masks((), truth, config.data)
    by_plan = dense_networks.under_plans(config, network, rivals)
    arrays = dense_networks.arrays(by_plan)
    sizes = {name: detector.preprocessing.img_size for name, detector in by_plan.items()}
    return dense_networks.conclude_test(
        config,
        workdir,
        by_plan,
        measured(config, arrays, source, truth, shared_inputs.mesh(config), sizes=sizes),
        source,
        scores=_scores,
        describe=functools.partial(describe, truth=truth, class_names=class_names),
    )
