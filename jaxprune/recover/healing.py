"""Heals a network under its plan: for some minutes, the dense network teaches it what it says of unlabelled images."""

import dataclasses
import json
import logging
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from safetensors.numpy import load_file, save

from jaxprune import parallel, processes
from jaxprune.data.arrays import of_arrays
from jaxprune.data.loader import eval_batches, train_batches
from jaxprune.data.order import Order
from jaxprune.data.sample import Picked, Sample
from jaxprune.data.source import Source
from jaxprune.dense import ExitSegmenter
from jaxprune.errors import UserError, require_options
from jaxprune.files import write_atomically
from jaxprune.measures.training_images import TrainingImages
from jaxprune.nn.around_host import AroundHost, host_of
from jaxprune.nn.host import Host
from jaxprune.nn.params import merge, split
from jaxprune.ops.host_random import host_generator
from jaxprune.preprocessing import Preprocessing
from jaxprune.recover.distillation import Distillation
from jaxprune.recover.held_out_agreement import HeldOutAgreement
from jaxprune.recover.settings import Settings
from jaxprune.train import loop, optimizer
from jaxprune.train import workdir as workdirs
from jaxprune.train.state import TrainState
from jaxprune.train.step import FIXED
from jaxprune.train.writer import Writer, read_metrics
from jaxprune.weights.fingerprint import digest_of, fingerprint

_log = logging.getLogger(__name__)
SCHEDULE, BEST = "course.json", "best.safetensors"
MOST_HELD_OUT = 512  # images to choose the best weights on
_PROBED = 3  # batches whose gradients give a step's time and the learning rate
_READ = 1 + _PROBED  # the first of them compiles


class Healed(NamedTuple):
    """A healed network.

    Attributes:
      model: the network under its plan.
      before, after: how alike it is to the teacher on held-out images: `cosine` of the features, and `agreement` of the
        predicted classes where both have a head.
      step: the step whose weights these are, of `steps`; 0: no evaluation was closer to the teacher than the start.
      steps: steps taken.
      seconds: training time.
      stopped: None, or "signal" if a signal ended the run: `model` is unchanged then, and the same call goes on.
      spent: {kind: seconds} of the wall-clock of all sessions; see `train.wall_clock`.
    """

    model: Any
    before: Mapping[str, float]
    after: Mapping[str, float]
    step: int
    steps: int
    seconds: float
    stopped: str | None = None
    spent: Mapping[str, float] = MappingProxyType({})


def recover(fast: Any, images: np.ndarray, *, teacher: Any, minutes: float = 30.0, **settings: Any) -> Any:
    """Returns a network under its plan, healed: it learns to say of images what the dense network says of them.

    >>> import jaxprune; from flax import nnx
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> plan = jaxprune.reduction.Plan("topk", keep_rate=0.5, reduction_loc=(1,))
    >>> fast = jaxprune.reduction.apply(model, plan)
    >>> images = np.random.default_rng(0).integers(0, 255, (20, 16, 16, 3), np.uint8)
    >>> healed = recover(fast, images, teacher=model, steps=2, batch_size=4)
    >>> healed.plan == fast.plan
    True

    Args:
      fast: the network to heal, a `Host`, or one for segmentation or detection; it is not changed.
      images: unlabelled, pixels from 0 to 255, uint8 (n, h, w, 3), of the teacher's size or larger; a tenth, but at
        most 512, is held out to choose the best weights on.
      teacher: the dense network.
      minutes: training time.
      settings: further `Settings`, and `workdir`, where an interrupted run of the same call is resumed.

    Raises:
      UserError: the networks or the images do not fit each other, a setting is unknown or outside its interval, or
        `workdir` holds another run.
    """
    names = (*(field.name for field in dataclasses.fields(Settings)), "workdir")
    require_options("recover", settings, names, word="setting")
    workdir = settings.pop("workdir", None)
    values = Settings(minutes=minutes, **settings)
    train, held_out = set_aside(of_arrays(images), values.seed)
    if workdir is not None:
        require_pair(fast, teacher)
        plan = getattr(fast, "plan", None)
        networks = {"student": fingerprint(fast), "teacher": fingerprint(teacher), "plan": plan and plan.text}
        run = {**dataclasses.asdict(values), **networks, "images": digest_of([("images", np.asarray(images))])}
        workdirs.prepare(workdir, run)
    with tempfile.TemporaryDirectory() as temporary:
        return heal(fast, teacher, train, held_out, values, workdir=workdir or temporary).model


def heal(
    student: Any,
    teacher: Any,
    train: Source,
    held_out: Source,
    settings: Settings,
    *,
    workdir: str | Path,
    mesh: Mesh | None = None,
    desc: str = "recover",
) -> Healed:
    """Heals a network, or goes on where an earlier call in `workdir` was interrupted.

    Args:
      student: the network to heal, under a plan or not; it is not changed.
      teacher: a dense network, of whatever size and patches; for segmentation or detection if the student is.
      train: unlabelled images.
      held_out: images to choose the best weights on.
      settings: how.
      workdir: holds checkpoints, metrics and the best weights.
      mesh: the devices.
      desc: the progress bar's label.

    Raises:
      UserError: the networks or the images do not fit each other.
    """
    require_pair(student, teacher)
    if settings.keep_rates and getattr(student, "plan", None) is None:
        raise UserError(
            f"keep_rates={settings.keep_rates} are those of a plan, and the network to heal has none: leave them out, "
            "or apply a plan."
        )
    workdir, mesh = Path(workdir), mesh or parallel.mesh_from_text("data=-1")
    measure = HeldOutAgreement(student, teacher, held_out, settings, mesh)
    before = measure(split(student).params)
    if not (settings.minutes or settings.steps) or not settings.weights:
        return Healed(student, before, before, 0, 0, 0.0)
    distillation = Distillation(student, teacher, settings)
    steps, rate = _schedule_parameters(distillation, train, settings, workdir, mesh)
    schedule = optimizer.warmup_cosine(rate, 0.0, steps / 20, steps, 1)
    frozen = parallel.replicate(mesh, distillation.learning.frozen)

    def evaluate(step: int, state: TrainState, writer: Writer) -> None:
        params = distillation.learning.params(state.params, frozen)
        similarity = measure(params)
        if processes.leads() and _score(similarity) >= max(map(_score, [before, *_evaluations(workdir)])):
            write_atomically(workdir / BEST, save({name: np.asarray(array) for name, array in params.items()}))
        writer.metrics(step, "eval", similarity)

    interval = max(1, -(-steps // settings.evaluations))
    result = loop.fit(
        distillation.losses(steps),
        distillation.learning.trained,
        distillation.optimizer(schedule),
        _batches(train, distillation.record, settings),
        workdir=workdir,
        mesh=mesh,
        total_steps=steps,
        seed=settings.seed,
        log_every=max(1, steps // 200),
        checkpoint_every=interval,
        examples_per_step=settings.batch_size,
        keep=1,
        hooks=[loop.Hook(interval, evaluate)],
        schedule=schedule,
        max_seconds=None if settings.steps else 66 * settings.minutes,
        fixed=distillation.fixed,
        desc=desc,
    )
    if result.stopped == "signal":
        return Healed(student, before, before, 0, result.step, result.seconds, "signal", result.spent)
    rows = [{"step": 0, **before}, *_evaluations(workdir)]
    best = max(rows, key=lambda row: (_score(row), row["step"]))
    after = {name: best[name] for name in before}
    if not best["step"]:
        _log.warning(
            "%s: in none of %d evaluations was the network closer to the dense one than before, so it stays as it is. "
            "Give a learning_rate below %g, or more time.", desc, len(rows) - 1, rate,
        )  # fmt: skip
    model = _filled(student, load_file(workdir / BEST) if best["step"] else split(student).params)
    if not teacher.preprocessing.num_frames:
        model.training_images = _training_images(
            student, train, held_out, distillation.record, settings, max(steps, _READ)
        )
    return Healed(model, before, after, best["step"], result.step, result.seconds, None, result.spent)


def _training_images(
    student: Any, train: Source, held_out: Source, record: Preprocessing, settings: Settings, steps: int
) -> TrainingImages:
    """The images of the first steps and those to choose by, prepared as for evaluation."""
    order = Order.of_process(len(train), settings.batch_size, 0, 1, settings.seed)
    learning = np.zeros(len(train), bool)
    for step in range(steps):
        learning[order(step)[1]] = True
        if learning.all():
            break
    sources = Picked(Sample(train, len(train)), np.flatnonzero(learning).tolist()), held_out
    _log.info("Recording which of %d images taught the network.", sum(map(len, sources)))
    images = (
        image
        for source in sources
        for batch in eval_batches(source, batch_size=settings.batch_size, preprocessing=record)
        for image in batch["image"]
    )
    return TrainingImages.of(images).joined(student.training_images)


def require_pair(student: Any, teacher: Any) -> None:
    """Refuses two networks of which one cannot teach the other.

    Raises:
      UserError: one has no tokens, or they have other heads or numbers of classes.
    """
    for name, model in {"network to heal": student, "teacher": teacher}.items():
        if isinstance(model, ExitSegmenter):
            raise UserError(
                f"The {name} is a {type(model).__name__}, whose tokens leave at its own exits: heal a network with "
                "another head, such as segvit."
            )
        if not isinstance(host_of(model), Host):
            raise UserError(f"The {name} is a {type(model).__name__}, which has no tokens: give a transformer.")
        if model.preprocessing is None:
            raise UserError(f"The {name} does not say how its images are prepared: set its preprocessing.")
    if isinstance(student, AroundHost) != isinstance(teacher, AroundHost) or (
        isinstance(student, AroundHost) and len(student.indices) != len(teacher.indices)
    ):
        raise UserError(
            f"The network to heal is a {type(student).__name__} and the teacher a {type(teacher).__name__}, which "
            "read other maps: give two of one kind."
        )
    classes = student.num_classes, teacher.num_classes
    if all(classes) and len(set(classes)) > 1:
        raise UserError(
            f"The network to heal has {classes[0]} classes and the teacher {classes[1]}: give two of the same classes, "
            "or networks without a head."
        )


def set_aside(source: Source, seed: int) -> tuple[Source, Source]:
    """Returns the images to learn from, and a tenth of a source, but at most 512, to choose the best weights on."""
    count = min(MOST_HELD_OUT, max(1, len(source) // 10))
    order = host_generator(seed).permutation(len(source))
    everything = Sample(source, len(source))
    return Picked(everything, sorted(order[count:].tolist())), Picked(everything, sorted(order[:count].tolist()))


def _batches(train: Source, record: Preprocessing, settings: Settings) -> Any:
    return train_batches(
        train,
        batch_size=settings.batch_size,
        preprocessing=record,
        seed=settings.seed,
        scale=settings.crop_scale,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )


class _ScheduleParameters(NamedTuple):
    """How many steps a network learns, and its highest learning rate."""

    steps: int
    learning_rate: float


def _schedule_parameters(
    distillation: Distillation, train: Source, settings: Settings, workdir: Path, mesh: Mesh
) -> _ScheduleParameters:
    """What the settings say; what is measured instead is recorded for a resume."""
    if settings.steps and settings.learning_rate:
        return _ScheduleParameters(settings.steps, settings.learning_rate)
    if jax.process_count() > 1:
        raise UserError("Several processes take the same steps: give steps instead of minutes, and a learning rate.")
    path = workdir / SCHEDULE
    if path.is_file():
        return _ScheduleParameters(**json.loads(path.read_text()))
    seconds, rate = _probe(distillation, train, settings, mesh)
    rate = settings.learning_rate or rate
    _log.info("The highest learning rate is %.2g.", rate)
    steps = settings.steps or max(1, int(60 * settings.minutes / seconds))
    parameters = _ScheduleParameters(steps, rate)
    workdir.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(parameters._asdict()))
    return parameters


def _probe(distillation: Distillation, train: Source, settings: Settings, mesh: Mesh) -> tuple[float, float]:
    """The time of a gradient, most of a step, and the learning rate for Adam: what undoes the loss, to first order.

    The first steps of Adam are of equal size in every parameter, the sign of its gradient. A trained network tolerates
    little of that: larger steps undo more of what it knows than they heal.
    """
    trained, fixed = (
        parallel.replicate(mesh, arrays) for arrays in (distillation.learning.trained, distillation.fixed)
    )
    value = jax.jit(jax.value_and_grad(distillation.loss(distillation.student), has_aux=True))
    batches, key = _batches(train, distillation.record, settings), jax.random.key(settings.seed)
    loss, total, start = 0.0, jax.tree.map(jnp.zeros_like, trained), 0.0
    for number in range(_READ):
        batch = parallel.place_batch(mesh, next(batches)) | {FIXED: fixed}
        if number == 1:  # compiled by now
            start = time.monotonic()
        (distance, _), gradient = value(trained, batch, key)
        loss, total = loss + float(distance), jax.tree.map(jnp.add, total, gradient)
    seconds = (time.monotonic() - start) / _PROBED
    change = sum(float(jnp.abs(array).sum()) for array in jax.tree.leaves(total))
    # Two digits, so that rounding changes nothing.
    return seconds, float(f"{loss / change:.1e}") if change else 0.0


def _score(similarity: Mapping[str, Any]) -> float:
    """What the best weights have most of."""
    return similarity.get("agreement", 0.0) + similarity.get("cosine", 0.0)


def _evaluations(workdir: Path) -> list[dict[str, Any]]:
    return [row for row in read_metrics(workdir) if row["split"] == "eval"]


def _filled(model: Any, params: Mapping[str, np.ndarray]) -> Any:
    """A copy of a network with other parameters."""
    parts = split(model)
    return merge(parts.graph, {name: jnp.asarray(array) for name, array in params.items()}, parts.rest)
