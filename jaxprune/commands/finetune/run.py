"""Trains a classifier and evaluates it on the way."""

from pathlib import Path
from typing import Any

import jax
from flax import nnx

from jaxprune import dynamic, reduction
from jaxprune.checkpoints.build import build
from jaxprune.checkpoints.run import load_model, write_card
from jaxprune.commands.finetune import by_image
from jaxprune.commands.finetune.page import describe
from jaxprune.commands.finetune.parameter_groups import grouped_optimizer
from jaxprune.commands.finetune.settings import fitted, objective, plan_of, require_teacher
from jaxprune.commands.shared import inputs, networks, reporting
from jaxprune.commands.shared.training import Training, begin, interrupted
from jaxprune.config import Config
from jaxprune.data.augment import augment
from jaxprune.evaluate.collectors import held_out
from jaxprune.models.convnet import ConvNet
from jaxprune.nn.batch_norm import BATCH_STATS, RunningStats, batch_stats
from jaxprune.nn.params import Split, merge, split
from jaxprune.open import initialise
from jaxprune.train.keep_rate import KeepRateWarmUp
from jaxprune.train.objective import ASYMMETRIC, answers
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
    plan, criterion = plan_of(config), objective(config)
    require_teacher(config)
    training = Training.of(config, workdir)
    arguments = {**networks.model_arguments(config), "num_classes": training.train.num_classes}
    model = build("model", arguments, dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    if start := networks.start_of(config):
        initialise(model, start, training.train.class_names)
    model.preprocessing = inputs.preprocessing(config)
    scorer = networks.open_scorer(config, model.entrance().grid) if config.scorer else None
    if plan is not None:
        model = reduction.apply(model, plan, scorer=scorer, rngs=nnx.Rngs(config.seed))
    teacher = split(load_model(config.teacher)) if config.teacher else None
    write_card(workdir, model, training.train.class_names)
    parts, several = split(model), criterion.classes == ASYMMETRIC
    loss_fn: Any = _loss_fn(config, model, teacher)
    if config.keep_rate_warmup.epochs:
        under = lambda plan: _loss_fn(config, reduction.apply(model, plan, scorer=scorer), teacher)
        loss_fn = KeepRateWarmUp(plan, training.steps.per_epoch, config.keep_rate_warmup, under)
    # A transformer's other arrays do not change; a ConvNet's batch statistics do.
    running = parts.rest if isinstance(model, ConvNet) else {}
    logits = held_out.logits(parts, config.data.mean, config.data.std)
    call = logits if several else held_out.single_label(logits)

    def measure(params: dict[str, jax.Array], state: TrainState) -> dict[str, float]:
        arrays = {**params, **state.extra.get(BATCH_STATS, {})}
        return held_out.measure(call, arrays, training.held_out_batches(), training.mesh, several=several)

    def evaluate(step: int, state: TrainState, writer: Writer) -> None:
        metrics = measure(state.params, state)
        if EMA in state.extra:
            metrics |= {f"ema_{name}": value for name, value in measure(state.extra[EMA], state).items()}
        writer.metrics(step, "eval", metrics)

    result = training.fit(
        parts.params,
        loss_fn,
        grouped_optimizer(config, parts.params, model, training),
        [training.every(config.eval_every, evaluate)],
        ema_decay=config.ema_decay,
        fixed={"teacher": teacher.params} if teacher else None,
        keepers=(RunningStats(running),) if running else (),
    )
    if stopped := interrupted(result):
        return stopped
    outcome = training.outcome(result)
    summary = outcome if several else reporting.with_interval(outcome)
    about = {"plan": None if plan is None else str(plan), "classes": training.train.num_classes}
    return training.conclude({**summary, **about}, describe)


def _loss_fn(config: Config, model: Any, teacher: Split | None) -> LossFn:
    """The loss of a network, including the losses of its reduction methods."""
    parts, data, reducers, criterion = split(model), config.data, reduction.installed(model), objective(config)
    options = {**config.augment, "num_classes": model.num_classes, "mean": data.mean, "std": data.std}

    def loss_fn(params, batch, key):
        augment_key, model_key = jax.random.split(key)
        images, targets = augment(augment_key, batch["image"], batch["label"], **options)
        network = merge(parts.graph, params, parts.rest)
        logits, aux = network(images, train=True, key=model_key)
        teacher_outputs = answers(teacher, batch[FIXED]["teacher"], images) if teacher else None
        loss, parts_of_loss = criterion(reducers, logits, aux, targets, teacher_outputs)
        shares: dict[str, Any] = dict(parts_of_loss)
        if criterion.classes != ASYMMETRIC:
            shares["accuracy"] = (logits.argmax(-1) == targets.argmax(-1)).mean()
        if isinstance(model, ConvNet):
            shares[BATCH_STATS] = batch_stats(split(network).rest, parts.rest)
        return loss, shares

    return loss_fn
