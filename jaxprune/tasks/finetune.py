"""Supervised training of a vision transformer, from pre-trained weights or from scratch, dense or under a plan."""

import logging
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from jaxprune import reduction
from jaxprune.analysis import held_out
from jaxprune.checkpoints.initialise import initialise
from jaxprune.checkpoints.networks import Networks
from jaxprune.checkpoints.run import build, load_model, write_card
from jaxprune.checkpoints.scorers import open_scorer
from jaxprune.config import Config
from jaxprune.data.augment import augment
from jaxprune.errors import UserError
from jaxprune.metrics import wilson_interval
from jaxprune.nn.params import Split, merge, split
from jaxprune.plugins import find
from jaxprune.reduction.evit import warm_up
from jaxprune.scoring import Scorer
from jaxprune.tasks import objective
from jaxprune.tasks.setup import inputs, networks, reporting, training
from jaxprune.train import loop, optimizer
from jaxprune.train import workdir as workdirs
from jaxprune.train.state import EMA
from jaxprune.train.step import LossFn
from jaxprune.train.writer import Writer, read_metrics
from jaxprune.viz.report import Report

_log = logging.getLogger(__name__)

# What trains at the full rate where the backbone has one of its own ("Which Tokens to Use?", supplement B).
_NEW = ("head.*", "head_dist.*", "pos_embed", "patch_embed.*", "*.reducer.*")


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Trains a classifier as the config says and leaves checkpoints, metrics and a report in `workdir`."""
    workdirs.prepare(workdir, config.to_dict())
    if workdirs.is_complete(workdir):
        return workdirs.read_summary(workdir)
    plan = plan_of(config)
    train, examples = inputs.source(config, "train"), inputs.source(config, "eval")
    arguments = {**networks.model_arguments(config), "num_classes": train.num_classes}
    model = build("model", arguments, dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    if start := networks.start_of(config):
        initialise(model, start)
    model.preprocessing = inputs.preprocessing(config)
    scorer = _open_scorer(config, model) if config.scorer else None
    if plan is not None:
        model = reduction.apply(model, plan, scorer=scorer, rngs=nnx.Rngs(config.seed))
    teacher = split(load_model(config.teacher)) if config.teacher else None
    write_card(workdir, model, train.class_names)
    parts = split(model)
    several = config.loss == "asymmetric"
    steps = training.length(config, len(train))
    schedule = training.learning_rate(config, steps)
    loss_fn: Any = _loss_fn(config, model, teacher)
    if config.keep_rate_warmup.epochs:
        remade = lambda plan: reduction.apply(model, plan, scorer=scorer)
        loss_fn = _WarmUp(config, plan, steps, lambda plan: _loss_fn(config, remade(plan), teacher))
    tx = _optimizer(config, parts, model.depth, schedule, steps)
    hook = loop.Hook(config.eval_every or steps.total, _evaluator(config, parts, examples))
    given = {"teacher": teacher.params} if teacher else None
    batches = inputs.train_batches(config, train)
    result = training.fit(config, workdir, parts, loss_fn, tx, schedule, steps, batches, [hook], given)
    if result.stopped == "signal":
        return {"stopped": "signal", "step": result.step}
    found = training.outcome(workdir, result, steps, train, examples)
    summary = {
        **found,
        **({} if several else _accuracy_interval(found["accuracy"], len(examples))),
        "plan": None if plan is None else str(plan),
        "classes": train.num_classes,
    }
    return training.conclude(workdir, summary, lambda: describe(config, workdir, summary, train, examples))


def _open_scorer(config: Config, model: Any) -> Scorer:
    """Opens `config.scorer`; what ConvNets read is EfficientNet-Lite0 unless its text names another network."""
    return open_scorer(
        config.scorer,
        Networks(proposal="efficientnet_lite0", seed=config.seed),
        grid=tuple(model.grid),
        normalised=(tuple(config.data.mean), tuple(config.data.std)),
        seed=config.seed,
    )


def _loss_fn(config: Config, model: Any, teacher: Split | None) -> LossFn:
    """The loss of a network, with what its reduction methods add to it."""
    parts, data, reducers = split(model), config.data, reduction.installed(model)
    options = {**config.augment, "num_classes": model.num_classes, "mean": data.mean, "std": data.std}

    def loss_fn(params, batch, key):
        augment_key, model_key = jax.random.split(key)
        images, targets = augment(augment_key, batch["image"], batch["label"], **options)
        logits, aux = merge(parts.graph, params, parts.rest)(images, train=True, key=model_key)
        taught = objective.teach(teacher, batch["given"]["teacher"], images) if teacher else None
        loss, shares = objective.total(config, reducers, logits, aux, targets, taught)
        if config.loss != "asymmetric":
            shares["accuracy"] = (logits.argmax(-1) == targets.argmax(-1)).mean()
        return loss, shares

    return loss_fn


class _WarmUp:
    """Lowers the keep rate by the epoch, from 1 to the plan's: a loss, and so a program, for each rate (EViT).

    Args:
      loss_of: plan -> the loss of the network under it.
    """

    def __init__(self, config: Config, plan: reduction.Plan | None, steps: training.Length, loss_of: Any):
        if plan is None or not isinstance(plan.keep_rate, float) or plan.num_keep or plan.r:
            raise UserError("keep_rate_warmup lowers one keep_rate: give reduction.method and a single keep_rate.")
        if plan.method is not None and find(reduction, reduction.Reducer, plan.method).published is not None:
            raise UserError(
                f"keep_rate_warmup changes how many tokens there are, and the weights of {plan.method} are made for one"
                " number: set keep_rate_warmup.epochs=0, or take a method without weights, such as evit."
            )
        self._plan, self._steps, self._loss_of = plan, steps, loss_of
        self._rate: float = plan.keep_rate
        self._warmup = dict(config.keep_rate_warmup)
        self._made: dict[float, LossFn] = {}

    def at(self, step: int) -> LossFn:
        """The loss of the step after `step`."""
        rate = warm_up(step // self._steps.per_epoch, self._rate, **self._warmup)
        if rate not in self._made:
            _log.info("The keep rate is %.3g from step %d on.", rate, step + 1)
            self._made[rate] = self._loss_of(self._plan.with_keep_rate(rate))
        return self._made[rate]


def plan_of(config: Config) -> reduction.Plan | None:
    """The plan that `config.reduction` describes; None without a method."""
    arguments = config.reduction.to_dict()
    if (arguments["method"] == "from_scores") != bool(config.scorer):
        raise UserError(
            f"reduction.method={arguments['method']!r} and scorer={config.scorer!r} do not go together: from_scores "
            "prunes by a scorer, such as 'ltrp:run=RUN' or 'papr', and other methods do without."
        )
    if config.scorer:
        arguments.pop("reduction_loc", None)  # it prunes before the first block
    return reduction.Plan(**arguments) if arguments["method"] else None


def _optimizer(config: Config, parts: Split, depth: int, schedule: Any, steps: training.Length) -> Any:
    settings = config.optimizer
    scales = optimizer.layer_scales(parts.params, depth, settings.layer_decay)
    # A scorer that learns comes before the first layer.
    scales |= {name: settings.layer_decay ** (depth + 1) for name in scales if name.startswith("pruner.")}
    own = None
    if settings.backbone_scale != 1.0 or settings.freeze_epochs:
        slower = training.learning_rate(config, steps, settings.backbone_scale)
        slower = optimizer.frozen_until(slower, settings.freeze_epochs * steps.per_epoch)
        own = {name: slower for name in parts.params if not any(fnmatchcase(name, new) for new in _NEW)}
    exempt = ("pos_embed", "cls_token", "dist_token", "reg_token")
    frozen = optimizer.frozen_names(parts.params, depth, config.trainable_blocks)
    return training.adamw(
        config, schedule, parts.params, exempt=exempt, layer_scales=scales, schedules=own, frozen=frozen
    )


def _evaluator(config: Config, parts: Split, source: Any) -> Callable[[int, Any, Writer], None]:
    """The evaluation of the current parameters and, where there are any, of the averaged ones."""
    several = config.loss == "asymmetric"
    logits = held_out.logits(parts, config.data.mean, config.data.std)
    call = logits if several else held_out.single_label(logits)

    def hook(step: int, state: Any, writer: Writer) -> None:
        measure = lambda params: held_out.measure(
            call, params, inputs.eval_batches(config, source), inputs.mesh(config), several=several
        )
        found = measure(state.params)
        if EMA in state.extra:
            found |= {f"ema_{name}": value for name, value in measure(state.extra[EMA]).items()}
        writer.metrics(step, "eval", found)

    return hook


def _accuracy_interval(accuracy: float, images: int) -> dict[str, float]:
    low, high = wilson_interval(round(accuracy * images), images)
    return {"accuracy_low": low, "accuracy_high": high}


def describe(config: Config, workdir: Path, summary: dict[str, Any], *sources: Any, path: Path | None = None) -> None:
    """Adds the section of this run to its report, or to the one at `path`."""
    report = Report("jaxprune", workdir.name)
    section = report.section(
        "Fine-tuning" if networks.start_of(config) else "Training from scratch", slug=f"finetune-{workdir.name}"
    )
    plan = f", under {summary['plan']}" if summary.get("plan") else ""
    start = networks.start_of(config)
    section.text(f"On {summary['data']}, {f'from {start}' if start else 'from random weights'}{plan}.")
    if summary["steps"] < summary["planned_steps"]:
        section.note(
            f"Stopped at step {summary['steps']} of {summary['planned_steps']}: the time of max_minutes was up.",
            kind="warning",
        )
    section.metric_tiles(
        {
            **_tiles(summary),
            "steps": summary["steps"],
            "seconds": round(summary["seconds"]),
        }
    )
    records = read_metrics(workdir)
    reporting.curves(section, records, {"train/loss": "training", "eval/loss": "held-out"}, "cross-entropy")
    reporting.curves(
        section, records, {"eval/accuracy": "held-out", "eval/ema_accuracy": "averaged weights"}, "accuracy"
    )
    reporting.curves(section, records, {"eval/map": "held-out", "eval/ema_map": "averaged weights"}, "mAP, percent")
    reporting.broken_files(section, *sources)
    section.command(reporting.command())
    report.add_to(path or workdir / "report.html")


def _tiles(summary: dict[str, Any]) -> dict[str, Any]:
    images = f"{summary['held_out']} images"
    if "map" in summary:
        return {"held-out mAP": (f"{summary['map']:.1f}", images)}
    half = (summary["accuracy_high"] - summary["accuracy_low"]) / 2
    accuracy = (f"{summary['accuracy']:.1%}", f"± {half:.1%}, {images}")
    return {"held-out accuracy": accuracy, "chance": f"{1 / summary['classes']:.1%}"}
