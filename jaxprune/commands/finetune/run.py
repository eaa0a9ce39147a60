"""Trains a classifier and evaluates it on the way."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
from flax import nnx
from jax.lax import stop_gradient

from jaxprune import dynamic, reduction
from jaxprune.checkpoints.build import build
from jaxprune.checkpoints.run import write_card
from jaxprune.commands.finetune import by_image
from jaxprune.commands.finetune.page import describe
from jaxprune.commands.finetune.parameter_groups import frozen_names, grouped_optimizer
from jaxprune.commands.finetune.settings import fitted, objective, plan_of, require_teacher
from jaxprune.commands.finetune.teacher import open_teacher
from jaxprune.commands.shared import inputs, networks, reporting
from jaxprune.commands.shared.ahead_of_time import DescribedStep, described_batch
from jaxprune.commands.shared.training import Length, Training, begin, interrupted, steps_of_epoch
from jaxprune.config import Config
from jaxprune.data.augment import augment
from jaxprune.errors import UserError, quoted
from jaxprune.evaluate.collectors import held_out
from jaxprune.models.convnet import ConvNet
from jaxprune.nn.batch_norm import BATCH_STATS, RunningStats, batch_stats
from jaxprune.nn.params import Split, merge, split, without_parameters
from jaxprune.open import initialise
from jaxprune.train.abstract_step import Step
from jaxprune.train.keep_rate import KeepRateWarmUp
from jaxprune.train.objective import ASYMMETRIC, teacher_forward
from jaxprune.train.state import EMA, TrainState
from jaxprune.train.step import FIXED, LossFn
from jaxprune.train.writer import Writer


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Trains a classifier, and writes checkpoints, metrics and a report to `workdir`."""
    config = fitted(config)
    if summary := begin(config, workdir):
        return summary
    if config.model.name in dynamic.methods():
        return by_image.train(config, workdir)
    require_teacher(config)
    training = Training.of(config, workdir)
    inputs.require_two_classes(training.train, training.held_out)
    model = _network(config, training.train.num_classes)
    if start := networks.start_of(config):
        initialise(model, start, training.train.class_names)
    scorer = _scorer(config, model)
    model = _prepared(config, model, scorer)
    write_card(workdir, model, training.train.class_names)
    teacher = open_teacher(config, training.train)
    step, parts = _step(config, model, training.steps, scorer, teacher), split(model)
    several = objective(config).classes == ASYMMETRIC
    logits = held_out.logits(parts, config.data.mean, config.data.std)
    call = logits if several else held_out.single_label(logits)

    def measure(params: dict[str, jax.Array], state: TrainState) -> dict[str, float]:
        arrays = {**state.extra.get(BATCH_STATS, {}), **params}  # averaged parameters bring averaged statistics
        return held_out.measure(call, arrays, training.held_out_batches(), training.mesh, several=several)

    def evaluate(step: int, state: TrainState, writer: Writer) -> None:
        metrics = measure(state.params, state)
        if EMA in state.extra:
            metrics |= {f"ema_{name}": value for name, value in measure(state.extra[EMA], state).items()}
        writer.metrics(step, "eval", metrics)

    result = training.fit(**step._asdict(), hooks=[training.every(config.eval_every, evaluate)])
    if stopped := interrupted(result):
        return stopped
    outcome = training.outcome(result)
    summary = outcome if several else reporting.with_interval(outcome)
    plan = plan_of(config)
    about = {"plan": None if plan is None else str(plan), "classes": training.train.num_classes}
    return training.conclude({**summary, **about}, describe)


def described(config: Config, steps: Length, num_classes: int) -> DescribedStep:
    """The training step and its batch of a config, as shapes: no data are read, and no weights are made.

    Raises:
      UserError: the network spends by image, which has a step of another kind.
    """
    config = fitted(config)
    if config.model.name in dynamic.methods():
        raise UserError(
            f"model.name={quoted(config.model.name)} spends by image: only other networks can be described."
        )
    require_teacher(config)
    scorer = _scorer(config, nnx.eval_shape(lambda: _network(config, num_classes)))
    model = without_parameters(lambda: _prepared(config, _network(config, num_classes), scorer))
    several = num_classes if objective(config).classes == ASYMMETRIC else 0
    teacher = open_teacher(config, SimpleNamespace(num_classes=num_classes))
    return DescribedStep(_step(config, model, steps, scorer, teacher), described_batch(config, several))


def _network(config: Config, num_classes: int) -> Any:
    """Builds the untrained network of a config."""
    arguments = {**networks.model_arguments(config), "num_classes": num_classes}
    return build("model", arguments, dtype=config.dtype, rngs=nnx.Rngs(config.seed))


def _scorer(config: Config, model: Any) -> Any:
    return networks.open_scorer(config, model.entrance().grid) if config.scorer else None


def _prepared(config: Config, model: Any, scorer: Any) -> Any:
    """Gives a network its preprocessing and its plan."""
    model.preprocessing = inputs.preprocessing(config)
    plan = plan_of(config)
    return model if plan is None else reduction.apply(model, plan, scorer=scorer, rngs=nnx.Rngs(config.seed))


def _step(config: Config, model: Any, steps: Length, scorer: Any, teacher: Split | None) -> Step:
    """The training step of a network under its plan."""
    parts = split(model)
    loss_fn: Any = _loss_fn(config, model, teacher)
    if config.keep_rate_warmup.epochs:
        under = lambda plan: _loss_fn(config, reduction.apply(model, plan, scorer=scorer), teacher)
        loss_fn = KeepRateWarmUp(plan_of(config), steps_of_epoch(config, steps), config.keep_rate_warmup, under)
    # A transformer's other arrays do not change; a ConvNet's batch statistics do.
    running = parts.rest if isinstance(model, ConvNet) else {}
    return Step(
        parts.params,
        loss_fn,
        grouped_optimizer(config, parts.params, model, steps),
        ema_decay=config.ema_decay,
        fixed={"teacher": teacher.params} if teacher else None,
        keepers=(RunningStats(running),) if running else (),
    )


def _loss_fn(config: Config, model: Any, teacher: Split | None) -> LossFn:
    """The loss of a network, including the losses of its reduction methods."""
    parts, data, reducers, criterion = split(model), config.data, reduction.installed(model), objective(config)
    options = {**config.augment, "num_classes": model.num_classes, "mean": data.mean, "std": data.std}
    normalised = tuple(data.mean), tuple(data.std)
    frozen = frozenset(frozen_names(config, parts.params, model))

    def loss_fn(params, batch, key):
        augment_key, model_key = jax.random.split(key)
        images, targets = augment(augment_key, batch["image"], batch["label"], **options)
        # Without their gradients the backward pass ends above the frozen parameters.
        arrays = {name: stop_gradient(value) if name in frozen else value for name, value in params.items()}
        network = merge(parts.graph, arrays, parts.rest)
        logits, aux = network(images, train=True, key=model_key)
        teacher_outputs = teacher_forward(teacher, batch[FIXED]["teacher"], images, normalised) if teacher else None
        loss, parts_of_loss = criterion(reducers, logits, aux, targets, teacher_outputs)
        shares: dict[str, Any] = dict(parts_of_loss)
        if criterion.classes != ASYMMETRIC:
            shares["accuracy"] = (logits.argmax(-1) == targets.argmax(-1)).mean()
        if isinstance(model, ConvNet):
            shares[BATCH_STATS] = batch_stats(split(network).rest, parts.rest)
        return loss, shares

    return loss_fn
