"""What the tasks share: from a config to data, a mesh, an optimizer and a training run."""

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from PIL import Image

from jaxprune import data as loader
from jaxprune import parallel, processes
from jaxprune.config import Config
from jaxprune.data.augment import normalize
from jaxprune.errors import UserError
from jaxprune.nn.params import Split
from jaxprune.nn.patch_embed import pair
from jaxprune.preprocessing import Preprocessing
from jaxprune.train import loop, optimizer
from jaxprune.train import workdir as workdirs
from jaxprune.train.writer import read_metrics
from jaxprune.viz import plots
from jaxprune.viz.report import Section


class Length(NamedTuple):
    """How long a run is, in optimizer steps."""

    per_epoch: int
    total: int


def source(config: Config, split: str) -> Any:
    """Opens the training ("train") or held-out ("eval") examples that `config.data` names."""
    data = config.data
    options: dict[str, Any] = {
        "scenes": {
            "num_examples": data.num_train if split == "train" else data.num_eval,
            "image_size": data.img_size,
            "seed": config.seed,
        },
        "folder": {"path": data.path, "labels": data.labels},
        "tfds": {
            "name": data.name,
            "data_dir": data.path or None,
            "labels": data.labels,
            "label_key": data.get("label_key", "label"),
        },
    }.get(data.source, {})
    chosen = data.train_split if split == "train" else data.eval_split
    return loader.create_source(data.source, split=chosen, **options)


def train_batches(config: Config, examples: Any) -> Any:
    """The endless, shuffled, cropped batches of a training run."""
    data = config.data
    return loader.train_batches(
        examples,
        batch_size=config.batch_size,
        image_size=data.img_size,
        seed=config.seed,
        crop=data.crop,
        scale=tuple(data.crop_scale),
        repeats=data.get("repeats", 1),
        randaugment=data.get("randaugment", ""),
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        num_threads=data.num_threads,
    )


def eval_batches(config: Config, examples: Any) -> Any:
    """One pass over the held-out examples; the last batch is padded."""
    return loader.eval_batches(
        examples,
        batch_size=config.batch_size,
        image_size=config.data.img_size,
        crop=config.data.get("eval_crop", "center"),
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )


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
    """AdamW as `config.optimizer` says."""
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
    """Trains `parts.params` as the config says; resumes if there is something to resume."""
    return _with_advice(
        config,
        loop.fit,
        loss_fn,
        parts.params,
        tx,
        batches,
        workdir=workdir,
        mesh=mesh(config),
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


def mesh(config: Config) -> jax.sharding.Mesh:
    """The device mesh of `config.mesh`, such as "data=-1" or "data=2,fsdp=4"."""
    axes = {}
    for item in config.mesh.split(","):
        name, _, size = item.partition("=")
        if name not in parallel.BATCH_AXES or not re.fullmatch(r"-1|\d+", size):
            raise UserError(
                f"mesh={config.mesh!r} is no mesh: write axes with their sizes, 'data=-1' or 'data=2,fsdp=4'; -1 takes "
                "what is left."
            )
        axes[name] = int(size)
    return parallel.make_mesh(axes)


def outcome(workdir: Path, result: loop.FitResult, steps: Length, train: Any, held_out: Any) -> dict[str, Any]:
    """Returns what every training run tells in the end, its last held-out metrics first."""
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


def preprocessing(config: Config) -> Preprocessing:
    """How the images of a run's network are prepared for evaluation."""
    data = config.data
    return Preprocessing(pair(data.img_size), crop=data.eval_crop, mean=tuple(data.mean), std=tuple(data.std))


def normalized(config: Config, images: jax.Array) -> jax.Array:
    """Pixels 0–255 to what the networks read."""
    return normalize(images, config.data.mean, config.data.std)


def plain(config: Config) -> dict[str, Any]:
    """A config as a dict of plain values."""
    return config.to_dict()


def command(config_file: str | None = None) -> str:
    """The command line that led here, for the report."""
    if config_file:
        return f"python -m jaxprune.main --config={config_file}"
    return shlex.join(["python", "-m", "jaxprune.main", *sys.argv[1:]])


def curves(section: Section, records: list[dict[str, Any]], names: dict[str, str], caption: str) -> None:
    """Adds a plot of the metrics `names` ("split/metric" to label) that `records` hold."""
    series = {}
    for name, label in names.items():
        split, metric = name.split("/")
        points = [(r["step"], r[metric]) for r in records if r["split"] == split and metric in r]
        if points:
            x, y = np.array(points, float).T
            series[label] = (x, y)
    if series:
        section.figure(plots.line_plot(series, xlabel="step", ylabel=caption), caption=caption)


def broken_files(section: Section, *sources: Any) -> None:
    """Says in the report which files could not be read."""
    broken = {path: why for s in sources for path, why in s.broken.items()}
    if broken:
        section.note(f"{len(broken)} files could not be read; other examples took their places.", kind="warning")
        section.table([{"file": str(path), "why": str(why)} for path, why in sorted(broken.items())])


def read_picture(path: Path) -> np.ndarray:
    """Reads a picture that a run drew."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))
