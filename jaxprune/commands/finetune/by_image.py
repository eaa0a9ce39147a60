"""Trains a network that spends by image: all exits together, or gates with a target for their cost."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxprune import dynamic, losses
from jaxprune.checkpoints.build import build
from jaxprune.checkpoints.run import load_model, write_card
from jaxprune.commands.finetune.page import describe
from jaxprune.commands.finetune.teacher import open_teacher
from jaxprune.commands.shared import inputs, reporting, spending_page
from jaxprune.commands.shared.training import Training, build_optimizer, interrupted
from jaxprune.config import Config
from jaxprune.data.augment import augment
from jaxprune.dynamic import Segmented
from jaxprune.errors import UserError
from jaxprune.evaluate.collectors import held_out
from jaxprune.evaluate.spending import all_exits, measure_exits
from jaxprune.nn.batch_norm import BATCH_STATS, RunningStats, batch_stats
from jaxprune.nn.params import Split, merge, split, variables
from jaxprune.nn.patch_embed import pair
from jaxprune.plugins import parameters
from jaxprune.train.objective import CROSS_ENTROPY, teacher_forward
from jaxprune.train.state import EMA, TrainState
from jaxprune.train.step import FIXED, KEPT, LossFn
from jaxprune.train.writer import Writer
from jaxprune.weights.read import load_pretrained

# Settings of other networks, with the values that mean nothing here.
_OF_OTHERS = {
    "global_pool": ("avg",),
    "head_init_scale": (1e-3, 1.0),
    "remat": (False,),
    "drop_path_rate": (0.0, 0.1),
}
_STEPS = "steps"
_DISTILLED_AT = 4.0  # the temperature of the distillation of LAUDNet


class StepCount(NamedTuple):
    """Counts the steps, for what changes during training; a `train.state.Keeper`."""

    name = _STEPS

    def initial(self, params: dict[str, Any]) -> dict[str, Any]:
        """See `Keeper`."""
        return {"count": jnp.zeros((), jnp.float32)}

    def updated(self, kept: dict[str, Any], observed: Any, steps: jax.Array, params: dict[str, Any]) -> dict[str, Any]:
        """See `Keeper`."""
        return {"count": steps.astype(jnp.float32)}


def train(config: Config, workdir: Path) -> dict[str, Any]:
    """Trains the network, and writes checkpoints, metrics and a report to `workdir`."""
    _require_own_settings(config)
    training = Training.of(config, workdir)
    inputs.require_two_classes(training.train, training.held_out)
    model = build(
        "dynamic", arguments(config, training.train.num_classes), dtype=config.dtype, rngs=nnx.Rngs(config.seed)
    )
    if config.model.weights:
        # Of a static network; its gates start open.
        model = load_pretrained(model, config.model.weights, new=("*masker_*",))
    model.preprocessing = inputs.preprocessing(config)
    teacher = open_teacher(config, training.train)
    write_card(workdir, model, training.train.class_names)
    parts = split(model)
    running = {name: value[...] for name, value in variables(model).items() if isinstance(value, nnx.BatchStat)}
    exits = all_exits(parts)
    last = held_out.single_label(lambda arrays, batch: exits(arrays, batch)["logits"][:, -1])

    def measure(params: dict[str, jax.Array], state: TrainState) -> dict[str, float]:
        arrays = {**state.extra.get(BATCH_STATS, {}), **params}  # averaged parameters bring averaged statistics
        return held_out.measure(last, arrays, training.held_out_batches(), training.mesh)

    def evaluate(step: int, state: TrainState, writer: Writer) -> None:
        metrics = measure(state.params, state)
        if EMA in state.extra:
            metrics |= {f"ema_{name}": value for name, value in measure(state.extra[EMA], state).items()}
        writer.metrics(step, "eval", metrics)

    result = training.fit(
        parts.params,
        _loss_fn(config, parts, model, teacher, training.steps.total),
        build_optimizer(config, training.schedule, parts.params, exempt=getattr(model, "no_decay", ())),
        [training.every(config.eval_every, evaluate)],
        ema_decay=config.ema_decay,
        fixed={"teacher": teacher.params} if teacher else None,
        keepers=(StepCount(), *((RunningStats(running),) if running else ())),
    )
    if stopped := interrupted(result):
        return stopped
    about = {"plan": None, "classes": training.train.num_classes}
    trained = load_model(workdir)
    spent = measure_exits(trained, training.held_out_batches(), training.mesh)

    def describe_with_costs(config: Config, workdir: Path, *rest: Any) -> None:
        describe(config, workdir, *rest)
        title, slug = "Cost and accuracy", f"spending-{workdir.name}"
        with reporting.report_section(workdir, workdir.name, title, slug) as section:
            spending_page.describe(section, trained, spent)

    return training.conclude({**reporting.with_interval(training.outcome(result)), **about}, describe_with_costs)


def _loss_fn(config: Config, parts: Split, model: Segmented, teacher: Split | None, total: int) -> LossFn:
    options = {**config.augment, "num_classes": model.num_classes, "mean": config.data.mean, "std": config.data.std}
    normalised = tuple(config.data.mean), tuple(config.data.std)
    has_statistics = any(isinstance(value, nnx.BatchStat) for value in variables(model).values())

    def loss_fn(params, batch, key):
        augment_key, model_key = jax.random.split(key)
        images, targets = augment(augment_key, batch["image"], batch["label"], **options)
        network = merge(parts.graph, params, parts.rest)
        progress = batch[KEPT][_STEPS]["count"] / total
        loss = network.loss(images, targets, key=model_key, progress=progress)
        value, shares = loss.value, dict(loss.parts)
        if teacher:
            scores, _ = teacher_forward(teacher, batch[FIXED]["teacher"], images, normalised)
            distance = _DISTILLED_AT**2 * losses.kl_distillation(loss.logits[-1], scores, _DISTILLED_AT)
            value, shares["loss_logits"] = value + config.distill.logits * distance, distance
        right = (loss.logits.argmax(-1) == targets.argmax(-1)[None]).mean(1)
        shares |= {"accuracy": right[-1]}
        shares |= {f"accuracy_exit{exit + 1}": share for exit, share in enumerate(right[:-1])}
        if has_statistics:
            after, names = split(network).rest, _statistics(model)
            shares[BATCH_STATS] = batch_stats(
                {name: after[name] for name in names}, {name: parts.rest[name] for name in names}
            )
        return value, shares

    return loss_fn


def _statistics(model: Segmented) -> list[str]:
    return [name for name, value in variables(model).items() if isinstance(value, nnx.BatchStat)]


def arguments(config: Config, num_classes: int) -> dict[str, Any]:
    """The arguments of `dynamic.create` in `config.model`.

    Raises:
      UserError: the images are not square.
    """
    model = {name: value for name, value in config.model.to_dict().items() if name not in ("weights", "class_names")}
    takes = parameters(dynamic.methods()[model["name"]])
    lacked = {name for name, values in _OF_OTHERS.items() if name not in takes and model.get(name) in values}
    height, width = pair(config.data.img_size)
    if height != width:
        raise UserError(
            f"data.img_size={(height, width)}: {model['name']} reads square images. Give one side, such as "
            f"{min(height, width)}."
        )
    sizes = {"img_size": height, "num_classes": num_classes}
    return {
        **sizes,
        **{name: value for name, value in model.items() if name not in lacked},
        "num_classes": sizes["num_classes"],
    }


def _require_own_settings(config: Config) -> None:
    """Refuses what only other networks have.

    Raises:
      UserError: such a setting is set.
    """
    rates, warmup = config.optimizer, config.keep_rate_warmup
    # With the values that mean nothing here.
    unused = {
        "reduction.method": (config.reduction.method, ""),
        "scorer": (config.scorer, ""),
        "run": (config.run, ""),
        "trainable_blocks": (config.trainable_blocks, -1),
        "only_method": (config.only_method, False),
        "loss": (config.loss, CROSS_ENTROPY),
        "loss_weights": (config.loss_weights, ""),
        "keep_rate_warmup.epochs": (warmup.epochs, 0),
        "optimizer.layer_decay": (rates.layer_decay, 1),
        "optimizer.backbone_scale": (rates.backbone_scale, 1),
        "optimizer.freeze_epochs": (rates.freeze_epochs, 0),
    }
    for name, (value, nothing) in unused.items():
        if value != nothing:
            raise UserError(
                f"{config.model.name} spends by image, and is trained without {name}={value!r}: set it to {nothing!r}."
            )
