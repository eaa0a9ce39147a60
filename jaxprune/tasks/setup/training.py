"""From a config to a training run: its length, its optimizer, the loop, and what it reports in the end."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax

from jaxprune import data as loader
from jaxprune import processes
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.tasks.setup import inputs
from jaxprune.train import loop, optimizer
from jaxprune.train import workdir as workdirs
from jaxprune.train.state import Snapshot, TrainState
from jaxprune.train.writer import Writer, read_metrics

_log = logging.getLogger(__name__)


class Length(NamedTuple):
    """How long a run is, in optimizer steps."""

    per_epoch: int
    total: int


def length(config: Config, num_examples: int) -> Length:
    """Steps of an epoch (the remainder is dropped) and of the run."""
    per_epoch = num_examples // config.batch_size
    total = int(per_epoch * config.epochs)
    if total < 1:
        raise UserError(
            f"{config.epochs} epochs of {num_examples} examples in batches of {config.batch_size} are no step at all: "
            "lower batch_size or raise epochs."
        )
    return Length(per_epoch, total)


def learning_rate(config: Config, steps: Length, scale: float = 1.0) -> optimizer.Schedule:
    """The warm-up and cosine, or steps, of `config.optimizer`; the rate is scaled with the batch, and by `scale`."""
    settings = config.optimizer
    rate = scale * optimizer.effective_lr(settings.base_lr, config.batch_size, settings.lr_norm)
    warmup = min(settings.warmup_epochs, config.epochs)
    if settings.milestones:
        return optimizer.warmup_multistep(
            rate, warmup, settings.milestones, steps.per_epoch, warmup_lr=settings.warmup_lr
        )
    return optimizer.warmup_cosine(
        rate,
        settings.min_lr,
        warmup,
        config.epochs,
        steps.per_epoch,
        warmup_lr=settings.warmup_lr,
        cosine_from_start=settings.cosine_from_start,
    )


def adamw(
    config: Config,
    schedule: optimizer.Schedule,
    params: dict,
    *,
    exempt=(),
    layer_scales=None,
    schedules=None,
    frozen=(),
) -> Any:
    """AdamW with the settings of `config.optimizer`."""
    settings = config.optimizer
    return optimizer.adamw(
        schedule,
        b1=settings.b1,
        b2=settings.b2,
        weight_decay=settings.weight_decay,
        decay_mask=optimizer.decay_mask(params, exempt),
        layer_scales=layer_scales,
        schedules=schedules,
        clip_norm=settings.clip_norm or None,
        frozen=frozen,
    )


@dataclasses.dataclass(frozen=True)
class Training:
    """One training run: its data, how long it is, and what begins and ends it.

    Attributes:
      config: of the task.
      workdir: the run directory.
      train, held_out: the examples.
      steps: how long it is.
      schedule: steps taken -> learning rate.
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
        return cls(config, workdir, train, held_out, steps, learning_rate(config, steps), inputs.mesh(config))

    def held_out_batches(self) -> Any:
        """One pass over the held-out examples."""
        return inputs.eval_batches(self.config, self.held_out)

    def every(self, steps: int, run: Callable[[int, TrainState, Writer], None]) -> loop.Hook:
        """Something to do every so many steps, and in the end; 0 steps: in the end only."""
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
        running: dict[str, Any] | None = None,
        snapshot: Snapshot | None = None,
    ) -> loop.FitResult:
        """Trains `params`; resumes if there is something to resume. The other arguments are those of `loop.fit`.

        Raises:
          UserError: a step does not fit in memory, with the settings to turn; and what `loop.fit` raises.
        """
        config = self.config
        try:
            return loop.fit(
                loss_fn,
                params,
                tx,
                inputs.train_batches(config, self.train),
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
                max_seconds=config.max_minutes * 60 or None,
                accumulate=config.accumulate,
                ema_decay=ema_decay,
                fixed=fixed,
                running=running,
                snapshot=snapshot,
                desc=self.workdir.name,
            )
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise _out_of_memory(config, str(error)) from error

    def outcome(self, result: loop.FitResult) -> dict[str, Any]:
        """Returns what every run reports in the end, its last held-out metrics first."""
        if result.stopped == "time" and result.step < self.steps.per_epoch:
            _log.warning(
                "%s: max_minutes=%g ended it after %d steps, and one epoch is %d: raise max_minutes.",
                self.workdir.name, self.config.max_minutes, result.step, self.steps.per_epoch,
            )  # fmt: skip
        measured = [row for row in read_metrics(self.workdir) if row["split"] == "eval"]
        last = measured[-1] if measured else {}
        return {
            **{name: value for name, value in last.items() if name not in ("step", "split")},
            "steps": result.step,
            "planned_steps": self.steps.total,
            "seconds": result.seconds,
            "examples": len(self.train),
            "held_out": len(self.held_out),
            "data": loader.describe(self.train),
            "broken_files": len(self.train.broken) + len(self.held_out.broken),
        }

    def conclude(self, summary: dict[str, Any], describe: Callable[..., None]) -> dict[str, Any]:
        """Notes that the run is complete and writes its report, once all its processes are done.

        Args:
          summary: returned, and kept in the run directory.
          describe: (config, workdir, summary, *examples), in the process that writes.
        """
        processes.wait("done")
        if processes.leads():
            workdirs.mark_complete(self.workdir, summary)
            describe(self.config, self.workdir, summary, self.train, self.held_out)
        processes.wait("described")
        return summary


def interrupted(result: loop.FitResult) -> dict[str, Any] | None:
    """Returns the summary of a run that a signal stopped, to be resumed; None of any other."""
    if result.stopped != "signal":
        return None
    return {"stopped": "signal", "signal": result.signal, "step": result.step}


def _out_of_memory(config: Config, message: str) -> UserError:
    model = "mim" if "mim" in config else "model"
    return UserError(
        f"A training step does not fit in memory: {message.splitlines()[0]} Turn one of these: "
        f"--config.batch_size (now {config.batch_size}); --config.accumulate (now {config.accumulate}), which "
        f"works through a batch in so many parts; --config.{model}.remat=True, which computes activations twice; "
        "--config.mesh=fsdp=-1, which spreads the parameters over the devices; --config.dtype=bfloat16."
    )
