"""What the tasks share: from a config to data, a mesh, an optimizer and a training run."""

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from jaxprune import data as loader
from jaxprune import parallel, processes
from jaxprune.checkpoints import scorers
from jaxprune.checkpoints.card import Card
from jaxprune.checkpoints.networks import Networks
from jaxprune.checkpoints.scorers import Opened
from jaxprune.config import Config
from jaxprune.config import data as defaults
from jaxprune.data.augment import normalize
from jaxprune.errors import UserError
from jaxprune.nn.params import Split
from jaxprune.nn.patch_embed import pair
from jaxprune.preprocessing import Preprocessing
from jaxprune.reduction import Plan
from jaxprune.train import loop, optimizer
from jaxprune.train import workdir as workdirs
from jaxprune.train.writer import read_metrics
from jaxprune.viz import plots
from jaxprune.viz.report import Report, Section


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


def eval_batches(config: Config, examples: Any, img_size: tuple[int, int] | None = None) -> Any:
    """One pass over the held-out examples, of `img_size` in place of the config's; the last batch is padded."""
    return loader.eval_batches(
        examples,
        batch_size=config.batch_size,
        image_size=img_size or config.data.img_size,
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


def classifier_card(run: str | Path) -> Card:
    """The card of the run directory of a classifier.

    Raises:
      UserError: there is none, or it holds another kind of model.
    """
    if not run:
        raise UserError("Give --config.run=RUN, the run directory of a classifier.")
    return Card.read(run).require("model", run)


def recorded_config(run: str | Path) -> dict[str, Any]:
    """The config that a run directory was made with."""
    return json.loads((Path(run) / "config.json").read_text())["config"]


def with_data_of(run: str | Path, config: Config) -> Config:
    """The config with the data settings of a run, except where `config.data` names a source of its own.

    A `config.img_size` other than 0 takes the place of the size that the run was trained with.
    """
    own = config.get("data")
    chosen = own.to_dict() if own is not None and own.source else recorded_config(run)["data"]
    size = {"img_size": config.img_size} if config.get("img_size") else {}
    return ConfigDict({**config.to_dict(), "data": {**defaults(), **chosen, **size}})


def held_out(config: Config, run: str | Path, class_names: Sequence[str]) -> Any:
    """Opens the held-out examples of `config.data` for the classifier in `run`.

    Raises:
      UserError: they have another number of classes than `class_names`.
    """
    examples = source(config, "eval")
    if examples.num_classes != len(class_names):
        raise UserError(
            f"The data have {examples.num_classes} classes and {run} knows {len(class_names)}: give the data "
            "it was trained on."
        )
    return examples


def plans(config: Config) -> dict[str, Plan]:
    """The plans that the texts in `config.plans` describe, by text."""
    shared = {"keep_rate": config.keep_rate, "reduction_loc": tuple(config.reduction_loc)}
    return {text: Plan.from_text(text, **shared) for text in config.plans}


def networks(config: Config) -> Networks:
    """The networks that scorers read by default: `config.run`, `config.model`, `config.proposal`."""
    names = {name: config.get(name) or "" for name in ("model", "proposal", "weights")}
    return Networks(run=config.get("run") or "", seed=config.seed, **names)


def open_scorers(config: Config) -> Opened:
    """Opens `config.scorers`; those that read a ConvNet see the images at `config.proposal_size`, if there is one."""
    opened = scorers.open_scorers(
        config.scorers,
        networks(config),
        normalised=(tuple(config.mean), tuple(config.std)),
        img_size=config.get("img_size") or 0,
        grid=config.get("grid") or 0,
        seed=config.seed,
    )
    return scorers.enlarged(opened, config.proposal_size) if "proposal_size" in config else opened


@contextlib.contextmanager
def report_section(path: Path, report: Report, title: str, slug: str, shown: str = "") -> Iterator[Section]:
    """A section of a report; it is added to the one at `path`, with the command line or `shown`, once it is filled."""
    section = report.section(title, slug=slug)
    yield section
    section.command(shown or command())
    path.parent.mkdir(parents=True, exist_ok=True)
    report.add_to(path)


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
    return parallel.mesh_from_text(config.mesh)


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


def start_of(config: Config) -> str:
    """What a classifier starts from: the run directory `config.run`, or the published file `config.model.weights`.

    Raises:
      UserError: both are set.
    """
    if config.run and config.model.weights:
        raise UserError(
            f"config.run={config.run} and config.model.weights={config.model.weights} are both set: start from one."
        )
    return config.run or config.model.weights


def model_arguments(config: Config) -> dict[str, Any]:
    """The arguments of `models.create` in `config.model`."""
    return {name: value for name, value in plain(config.model).items() if name != "weights"}


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
    """Lists in the report the files that could not be read."""
    broken = {path: why for s in sources for path, why in s.broken.items()}
    if broken:
        section.note(f"{len(broken)} files could not be read; other examples took their places.", kind="warning")
        section.table([{"file": str(path), "why": str(why)} for path, why in sorted(broken.items())])


def read_picture(path: Path) -> np.ndarray:
    """Reads a picture that a run drew."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))
