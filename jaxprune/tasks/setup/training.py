"""From a config to a training run: its length, its optimizer, the loop, and what it reports in the end."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxprune import data as loader
from jaxprune import processes
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.nn.params import Split
from jaxprune.tasks.setup import inputs
from jaxprune.train import loop, optimizer
from jaxprune.train import workdir as workdirs
from jaxprune.train.writer import read_metrics


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
    """The warm-up and cosine of `config.optimizer`, its rate scaled with the batch, and by `scale`."""
    settings = config.optimizer
    return optimizer.warmup_cosine(
        scale * optimizer.effective_lr(settings.base_lr, config.batch_size, settings.get("lr_norm", 256)),
        settings.min_lr,
        min(settings.warmup_epochs, config.epochs),
        config.epochs,
        steps.per_epoch,
        warmup_lr=settings.get("warmup_lr", 0.0),
        cosine_from_start=settings.get("cosine_from_start", False),
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


def fit(
    config: Config,
    workdir: Path,
    parts: Split,
    loss_fn: Any,
    tx: Any,
    schedule: Any,
    steps: Length,
    batches: Any,
    hooks: Sequence[loop.Hook],
    given: Any = None,
    running: Any = None,
) -> loop.FitResult:
    """Trains `parts.params` by the config; resumes if there is something to resume."""
    return _with_advice(
        config,
        loop.fit,
        loss_fn,
        parts.params,
        tx,
        batches,
        workdir=workdir,
        mesh=inputs.mesh(config),
        total_steps=steps.total,
        seed=config.seed,
        log_every=config.log_every,
        checkpoint_every=config.checkpoint_every,
        examples_per_step=config.batch_size,
        keep=config.keep,
        hooks=hooks,
        schedule=schedule,
        max_seconds=config.max_minutes * 60 or None,
        accumulate=config.accumulate,
        ema_decay=config.get("ema_decay", 0.0),
        given=given,
        running=running,
        desc=workdir.name,
    )


def _with_advice(config: Config, fit: Any, *arguments: Any, **options: Any) -> loop.FitResult:
    try:
        return fit(*arguments, **options)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        model = "mim" if "mim" in config else "model"
        raise UserError(
            f"A training step does not fit in memory: {str(error).splitlines()[0]} Turn one of these: "
            f"--config.batch_size (now {config.batch_size}); --config.accumulate (now {config.accumulate}), which "
            f"works through a batch in so many parts; --config.{model}.remat=True, which computes activations twice; "
            "--config.mesh=fsdp=-1, which spreads the parameters over the devices; --config.dtype=bfloat16."
        ) from error


def outcome(workdir: Path, result: loop.FitResult, steps: Length, train: Any, held_out: Any) -> dict[str, Any]:
    """Returns what every training run reports in the end, its last held-out metrics first."""
    measured = [row for row in read_metrics(workdir) if row["split"] == "eval"]
    return {
        **{name: value for name, value in (measured[-1] if measured else {}).items() if name not in ("step", "split")},
        "steps": result.step,
        "planned_steps": steps.total,
        "seconds": result.seconds,
        "examples": len(train),
        "held_out": len(held_out),
        "data": loader.describe(train),
        "broken_files": len(train.broken) + len(held_out.broken),
    }


def conclude(workdir: Path, summary: dict[str, Any], describe: Callable[[], None]) -> dict[str, Any]:
    """Notes that a run is complete and writes its report, once all its processes are done; returns the summary."""
    processes.wait("done")
    if processes.leads():
        workdirs.mark_complete(workdir, summary)
        describe()
    processes.wait("described")
    return summary
