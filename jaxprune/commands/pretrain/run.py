"""Trains a framework of masked pre-training, and draws its reconstructions on the way."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxprune import parallel, processes
from jaxprune.checkpoints.build import build
from jaxprune.checkpoints.run import write_card
from jaxprune.commands.pretrain.page import describe
from jaxprune.commands.pretrain.settings import networks
from jaxprune.commands.shared import inputs
from jaxprune.commands.shared.ahead_of_time import DescribedStep, described_batch
from jaxprune.commands.shared.training import (
    Length,
    Training,
    begin,
    build_optimizer,
    interrupted,
    learning_rate,
    steps_of_epoch,
)
from jaxprune.config import Config
from jaxprune.data.augment import random_flip
from jaxprune.data.sample import Sample
from jaxprune.errors import UserError
from jaxprune.evaluate import Averages, Forward, run_over
from jaxprune.evaluate.collectors import reconstruction
from jaxprune.mim.parts.base import STORED
from jaxprune.mim.parts.host_masks import HostMasks
from jaxprune.models.vit import VisionTransformer
from jaxprune.nn.params import Split, merge, split
from jaxprune.open import Origin, named, open_network
from jaxprune.train.abstract_step import Step
from jaxprune.train.state import TrainState
from jaxprune.train.step import FIXED, KEPT, LossFn
from jaxprune.train.writer import Writer

_log = logging.getLogger(__name__)

PICTURES = 6
PICTURED = 8  # times as many images are read, to find some of other classes


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Pre-trains as configured, and writes checkpoints, metrics, pictures and a report to `workdir`."""
    if summary := begin(config, workdir):
        return summary
    training = Training.of(config, workdir)
    model = build("mim", arguments_of(config), dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    model.preprocessing = inputs.preprocessing(config)
    _warn_of_warmup(config, model, training.steps)
    parts = split(model)
    write_card(workdir, model, fixed={name: a for name, a in parts.rest.items() if name.startswith(STORED)})
    fixed = parallel.replicate(training.mesh, parts.rest)
    sample = Sample(training.held_out, min(PICTURED * PICTURES, len(training.held_out)))
    preprocessing, pictured = (
        model.preprocessing,
        reconstruction.one_per_class(inputs.eval_batches(config, sample), PICTURES),
    )

    losses = reconstruction.losses(parts, preprocessing)

    def evaluate(step: int, state: TrainState, writer: Writer) -> None:
        forwards = {"loss": Forward(losses, {"params": state.params, "fixed": fixed})}
        batches = training.held_out_batches()
        (averages,) = run_over(batches, forwards, [Averages("loss")], training.mesh, desc="held-out")
        writer.metrics(step, "eval", reconstruction.with_ratio(averages))

    def draw(step: int, state: TrainState, writer: Writer) -> None:
        params = processes.whole(state.params)
        if processes.leads():
            model = merge(parts.graph, params, parts.rest)
            writer.images(step, "reconstruction", reconstruction.picture(model, preprocessing, pictured))

    result = training.fit(
        **_step(config, model, training.steps, fixed)._asdict(),
        hooks=[training.every(config.picture_every, draw), training.every(config.eval_every, evaluate)],
        beside=_masks_on_host(model) if config.masks_on_host else None,
    )
    return interrupted(result) or training.conclude(training.outcome(result), describe)


def _warn_of_warmup(config: Config, model: Any, steps: Length) -> None:
    """Warns if a framework trains as its base does to the end of the run."""
    last = int((steps.total - 1) // steps_of_epoch(config, steps))
    if "warmup" in model.phase(last):
        _log.warning(
            "%s masks as in its warm-up to the end of the run: the %g epochs do not exceed "
            "config.mim.warmup_epochs=%s. Lower it, or train for more epochs.",
            type(model).__name__,
            config.epochs,
            model.warmup_epochs,
        )


def described(config: Config, steps: Length, num_classes: int) -> DescribedStep:
    """The training step and its batch of a config, as shapes: no data are read, and no weights are made."""
    make = lambda: build("mim", arguments_of(config), dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    model = nnx.eval_shape(make)
    batch = described_batch(config)
    if config.masks_on_host:
        masks = _masks_on_host(model)(np.random.default_rng(0))
        batch |= {name: jax.ShapeDtypeStruct((config.batch_size, *row.shape), row.dtype) for name, row in masks.items()}
    return DescribedStep(_step(config, model, steps, split(model).rest), batch)


def _step(config: Config, model: Any, steps: Length, fixed: dict[str, Any]) -> Step:
    """The training step of a framework.

    Args:
      fixed: its arrays that are not trained, as arguments of every step and not as constants: a teacher is large.
    """
    parts, of_epoch = split(model), steps_of_epoch(config, steps)
    return Step(
        parts.params,
        _Losses(config, parts, model.phase, of_epoch),
        build_optimizer(config, learning_rate(config, steps), parts.params, exempt=model.no_decay),
        fixed=fixed,
        keepers=model.keepers(of_epoch),
    )


class _Losses:
    """The losses of a run: one, hence one program, for each phase of the framework (`Framework.phase`)."""

    def __init__(self, config: Config, parts: Split, phase: Callable[[int], dict[str, Any]], steps_per_epoch: float):
        self._config, self._parts, self._phase, self._steps_per_epoch = config, parts, phase, steps_per_epoch
        self._made: dict[tuple, LossFn] = {}

    def at(self, step: int) -> LossFn:
        """The loss of the step after `step`."""
        phase = self._phase(int(step // self._steps_per_epoch))
        return self._made.setdefault(tuple(sorted(phase.items())), _loss_fn(self._config, self._parts, phase))


def _loss_fn(config: Config, parts: Split, phase: dict[str, Any]) -> LossFn:
    def loss_fn(params, batch, key):
        flip_key, mask_key = jax.random.split(key)
        images = random_flip(flip_key, batch["image"]) if config.flip else batch["image"]
        model = merge(parts.graph, params, batch.get(FIXED, {}))
        host_masks = {name: batch[name] for name in ("noise", "retained") if name in batch}
        call = {**phase, **batch.get(KEPT, {}), **host_masks}
        return model.training_loss(inputs.normalized(config, images), mask_key, **call), {}

    return loss_fn


def _masks_on_host(model: Any) -> HostMasks:
    """Draws a framework's masks for data workers.

    Raises:
      UserError: its masks depend on the batch or on the encoder, or there is no furthest point sampling.
    """
    masks = None if model.keepers(1) else model.masker.on_host()
    if masks is None:
        raise UserError(
            f"masks_on_host=True is for random masks with retain='furthest' and a throw_ratio above 0, unlike those of "
            f"this {type(model).__name__}: set masks_on_host=False."
        )
    return masks


def arguments_of(config: Config) -> dict[str, Any]:
    """Returns `config.mim` with its networks, which the config specifies separately, opened.

    A vision transformer with another patch size is opened at the image size that gives as many patches as the framework
    has.

    Raises:
      UserError: a file cannot be read, or belongs to another network.
    """
    arguments = config.mim.to_dict()
    settings = lambda name: (f"--config.{name}.run", f"--config.{name}.weights", f"--config.{name}.name")
    origins = {
        name: named(**config[name], settings=settings(name))
        for name in networks(arguments)
        if name in config and (config[name].run or config[name].weights)
    }
    if not origins:
        return arguments
    bare: Any = nnx.eval_shape(lambda: build("mim", {**arguments, **dict.fromkeys(origins)}, rngs=nnx.Rngs(0)))
    return {**arguments, **{name: _opened(origin, bare.grid) for name, origin in origins.items()}}


def _opened(origin: Origin, grid: tuple[int, int]) -> Any:
    network = open_network(origin)
    if not isinstance(network, VisionTransformer) or network.grid == grid:
        return network
    height, width = (cells * side for cells, side in zip(grid, network.patch_embed.patch_size, strict=True))
    return open_network(origin, img_size=(height, width))
