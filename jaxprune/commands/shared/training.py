"""Builds a training run from a config: its length, its optimizer, the loop, and its summary."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax

from jaxprune import commands, parallel, processes
from jaxprune import data as loader
from jaxprune.commands.shared import inputs
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.train import loop, optimizer
from jaxprune.train import workdir as workdirs
from jaxprune.train.state import Keeper, TrainState
from jaxprune.train.writer import Writer, read_metrics

_log = logging.getLogger(__name__)


class Length(NamedTuple):
    """The length of a run in optimizer steps."""

    per_epoch: int
    total: int


def length(config: Config, num_examples: int) -> Length:
    """Steps per epoch (the remainder is dropped) and of the whole run, which `config.steps` or `config.epochs` sets."""
    per_epoch = num_examples // config.batch_size
    if not per_epoch:
        raise UserError(
            f"There are {num_examples} training images, fewer than a batch of {config.batch_size}: give "
            f"--config.batch_size={num_examples} or less."
        )
    total = total_steps(config, per_epoch)
    if total < 1:
        raise UserError(
            f"{config.epochs} epochs of {num_examples} images in batches of {config.batch_size} are no whole step: "
            "lower --config.batch_size or raise --config.epochs."
        )
    return Length(per_epoch, total)


def total_steps(config: Config, per_epoch: int) -> int:
    """The whole steps of a run, which `config.steps` or `config.epochs` sets: 0.29 epochs of 100 steps are 29."""
    return config.steps or int(round(per_epoch * config.epochs, 6))  # as numbers they are 28.999999999999996


def steps_of_epoch(config: Config, steps: Length) -> float:
    """The steps of an epoch of schedules: `config.steps` stretches `config.epochs` over the run."""
    return steps.total / config.epochs if config.steps else steps.per_epoch


def learning_rate(config: Config, steps: Length, scale: float = 1.0) -> optimizer.Schedule:
    """The warm-up and cosine or step schedule of `config.optimizer`; the rate is scaled by batch size and `scale`."""
    settings = config.optimizer
    rate = scale * optimizer.effective_lr(settings.base_lr, config.batch_size, settings.lr_norm)
    warmup, of_epoch = min(settings.warmup_epochs, config.epochs), steps_of_epoch(config, steps)
    if settings.milestones:
        return optimizer.warmup_multistep(rate, warmup, settings.milestones, of_epoch, warmup_lr=settings.warmup_lr)
    return optimizer.warmup_cosine(
        rate,
        settings.min_lr,
        warmup,
        config.epochs,
        of_epoch,
        warmup_lr=settings.warmup_lr,
        cosine_from_start=settings.cosine_from_start,
    )


# The settings of `config.optimizer` that each optimizer takes, if they are there.
_NUMBERS = {
    "adamw": ("b1", "b2", "weight_decay"),
    "lamb": ("b1", "b2", "weight_decay"),
    "lars": ("momentum", "weight_decay"),
    "sgd": ("momentum", "weight_decay"),
}


def build_optimizer(
    config: Config,
    schedule: optimizer.Schedule,
    params: dict,
    *,
    exempt: Sequence[str] = (),
    layer_scales: Mapping[str, float] | None = None,
    schedules: Mapping[str, optimizer.Schedule] | None = None,
    frozen: Sequence[str] = (),
) -> optax.GradientTransformation:
    """Builds the optimizer that `config.optimizer` names, with its numbers.

    Args:
      exempt: patterns of parameters that do not decay (`optimizer.decay_mask`).
      layer_scales, schedules, frozen: see `optimizer.adamw`.
    """
    settings = config.optimizer
    return optimizer.OPTIMIZERS[settings.name](
        schedule,
        **{name: settings[name] for name in _NUMBERS[settings.name] if name in settings},
        decay_mask=optimizer.decay_mask(params, exempt),
        layer_scales=layer_scales,
        schedules=schedules,
        clip_norm=("clip_norm" in settings and settings.clip_norm) or None,
        frozen=frozen,
    )


def begin(config: Config, workdir: Path) -> dict[str, Any] | None:
    """Makes `workdir` the directory of the run of a config; returns its summary if the run is complete.

    A run whose config was recorded before a setting existed goes on if the setting has its default.

    Raises:
      UserError: the directory is of another run; see `workdir.prepare`.
    """
    workdirs.prepare(workdir, config.to_dict(), commands.declared_defaults(config))
    return workdirs.read_summary(workdir) if workdirs.is_complete(workdir) else None


@dataclasses.dataclass(frozen=True)
class Training:
    """One training run: its data, its length, its start and its end.

    Attributes:
      config: config of the task.
      workdir: the run directory.
      train, held_out: the examples.
      steps: the length of the run.
      schedule: maps the step to the learning rate.
      mesh: the devices to run on.
    """

    config: Config
    workdir: Path
    train: Any
    held_out: Any
    steps: Length
    schedule: optimizer.Schedule
    mesh: jax.sharding.Mesh

    @classmethod
    def of(cls, config: Config, workdir: Path) -> "Training":
        """Opens the data of a config."""
        train, held_out = inputs.source(config, "train"), inputs.source(config, "eval")
        steps = length(config, len(train))
        if (warmup := config.optimizer.warmup_epochs) >= config.epochs:
            _log.warning(
                "The learning rate only rises: optimizer.warmup_epochs=%g is no shorter than epochs=%g. For a tenth of "
                "the run give --config.optimizer.warmup_epochs=%g.",
                warmup, config.epochs, config.epochs / 10,
            )  # fmt: skip
        return cls(config, workdir, train, held_out, steps, learning_rate(config, steps), inputs.mesh(config))

    def held_out_batches(self) -> Any:
        """One pass over the held-out examples."""
        return inputs.eval_batches(self.config, self.held_out)

    def every(self, steps: int, run: Callable[[int, TrainState, Writer], None]) -> loop.Hook:
        """A hook that runs every `steps` steps and at the end; 0: only at the end."""
        return loop.Hook(steps or self.steps.total, run)

    def fit(
        self,
        params: dict[str, Any],
        loss_fn: Any,
        tx: optax.GradientTransformation,
        hooks: Sequence[loop.Hook],
        *,
        ema_decay: float = 0.0,
        fixed: Mapping[str, Any] | None = None,
        keepers: Sequence[Keeper] = (),
        beside: Callable[[Any], dict[str, Any]] | None = None,
        batches: loop.Batches | None = None,
    ) -> loop.FitResult:
        """Trains `params`, resuming from a checkpoint if there is one. The other arguments are those of `loop.fit`.

        Args:
          beside: draws further arrays of each example, see `data.train_batches`.
          batches: those of the run, instead of images of classes.

        Raises:
          UserError: a step does not fit in memory (the message lists settings to change); or as for `loop.fit`.
        """
        config = self.config
        try:
            return loop.fit(
                loss_fn,
                params,
                tx,
                inputs.train_batches(config, self.train, beside) if batches is None else batches,
                workdir=self.workdir,
                mesh=self.mesh,
                total_steps=self.steps.total,
                seed=config.seed,
                log_every=config.log_every,
                checkpoint_every=config.checkpoint_every,
                examples_per_step=config.batch_size,
                keep=config.keep,
                hooks=hooks,
                schedule=self.schedule,
                rules=parallel.rules_from_texts(config.shardings),
                max_seconds=config.max_minutes * 60 or None,
                accumulate=config.accumulate,
                ema_decay=ema_decay,
                fixed=fixed,
                keepers=keepers,
                desc=self.workdir.name,
            )
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise _out_of_memory(config, str(error)) from error

    def outcome(self, result: loop.FitResult) -> dict[str, Any]:
        """Returns the summary common to all runs, its last held-out metrics first."""
        if result.stopped == "time" and result.step < self.steps.per_epoch:
            _log.warning(
                "%s: stopped by max_minutes=%g after %d steps, less than an epoch of %d: raise max_minutes.",
                self.workdir.name, self.config.max_minutes, result.step, self.steps.per_epoch,
            )  # fmt: skip
        measured = [row for row in read_metrics(self.workdir) if row["split"] == "eval"]
        last = measured[-1] if measured else {}
        return {
            **{name: value for name, value in last.items() if name not in ("step", "split")},
            "steps": result.step,
            "planned_steps": self.steps.total,
            "seconds": result.seconds,
            "wall_clock": {kind: round(seconds, 2) for kind, seconds in result.spent.items()},
            "examples": len(self.train),
            "held_out": 0 if inputs.nothing_held_out(self.config) else len(self.held_out) - len(self.held_out.broken),
            "data": loader.describe(self.train),
            "broken_files": len(self.train.broken) + len(self.held_out.broken),
        }

    def conclude(self, summary: dict[str, Any], describe: Callable[..., None]) -> dict[str, Any]:
        """Writes the report of the run and marks it as complete, once all its processes are done.

        In this order: a run that ends in between writes its report when it is started again.

        Args:
          summary: returned, and stored in the run directory.
          describe: called with (config, workdir, summary, *examples) in the writing process.
        """
        processes.wait("done")
        if processes.leads():
            describe(self.config, self.workdir, summary, self.train, self.held_out)
            workdirs.mark_complete(self.workdir, summary)
        processes.wait("described")
        return summary


def interrupted(result: loop.FitResult) -> dict[str, Any] | None:
    """Returns the summary of a run that was stopped by a signal and can be resumed, else None."""
    if result.stopped != "signal":
        return None
    return {"stopped": "signal", "signal": result.signal, "step": result.step}


def _out_of_memory(config: Config, message: str) -> UserError:
    model = "mim" if "mim" in config else "model"
    return UserError(
        f"A training step does not fit in memory: {message.splitlines()[0]} Change one of these: "
        f"--config.batch_size (now {config.batch_size}); --config.accumulate (now {config.accumulate}), the "
        f"number of micro-batches; --config.{model}.remat=True, which recomputes activations; "
        "--config.mesh=fsdp=-1, which shards the parameters over the devices; --config.dtype=bfloat16."
    )
