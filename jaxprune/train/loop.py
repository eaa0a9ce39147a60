"""The train loop: resume, step, evaluate, write, save; read `fit` from top to bottom."""

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from jaxprune import parallel, processes
from jaxprune.checkpoints.store import CheckpointStore
from jaxprune.errors import UserError
from jaxprune.train import state as states
from jaxprune.train.divergence import LossWatch, check_sound
from jaxprune.train.interrupt import Interrupted, StopSignal
from jaxprune.train.progress import progress, still
from jaxprune.train.state import Keeper, TrainState
from jaxprune.train.step import FIXED, LossFn, TrainStep, make_train_step
from jaxprune.train.wall_clock import COMPILE, DATA, EVALUATION, SAVE, WallClock, lost_since
from jaxprune.train.workdir import locked
from jaxprune.train.writer import BEGINNING, Silent, Writer, warn_if_changed

_log = logging.getLogger(__name__)


class Batches(Protocol):
    """An endless iterator over host batches whose position can be saved as plain JSON values."""

    def __next__(self) -> Mapping[str, np.ndarray]: ...

    def get_state(self) -> dict: ...

    def set_state(self, state: dict, /) -> None: ...


class Hook(NamedTuple):
    """A function to call every `interval` steps and after the last one, such as an evaluation.

    It writes through the passed writer, before the step's checkpoint, so that a resumed run writes each line exactly
    once. The state belongs to the loop: its arrays are donated to the next step.
    """

    interval: int
    run: Callable[[int, TrainState, Writer], None]


class FitResult(NamedTuple):
    """The end of a training session.

    Attributes:
      state: the state after the last step.
      step: number of steps taken.
      stopped: None if all steps are done.
      seconds: training time, in this session and earlier ones, without compilation.
      signal: name of the signal that ended it, such as "SIGINT", or "".
      spent: {what: seconds} of the wall-clock of all sessions; see `wall_clock`.
    """

    state: TrainState
    step: int
    stopped: Literal["signal", "time"] | None
    seconds: float
    signal: str = ""
    spent: Mapping[str, float] = MappingProxyType({})


def fit(
    loss_fn: LossFn,
    params: dict[str, Any],
    optimizer: optax.GradientTransformation,
    batches: Batches,
    *,
    workdir: str | os.PathLike,
    mesh: Mesh,
    total_steps: int,
    seed: int,
    log_every: int,
    checkpoint_every: int,
    examples_per_step: int,
    keep: int = 3,
    hooks: Sequence[Hook] = (),
    schedule: optax.Schedule | None = None,
    rules: parallel.Rules = (),
    max_seconds: float | None = None,
    accumulate: int = 1,
    ema_decay: float = 0.0,
    fixed: Mapping[str, Any] | None = None,
    keepers: Sequence[Keeper] = (),
    writer: Writer | None = None,
    desc: str = "train",
) -> FitResult:
    """Trains until `total_steps`, from the newest checkpoint in `workdir` if there is one.

    Args:
      loss_fn: (params, batch, key) -> (loss, {name: scalar}); or an object whose `at(step)` is the loss of a step, the
        same function for all steps that share a program.
      params: initial parameters, {dotted name: array}; not changed.
      optimizer: the optimizer, including its schedule.
      batches: the training data.
      workdir: the run directory.
      mesh: the devices to run on.
      total_steps: total number of optimizer steps.
      seed: seed of all randomness in `loss_fn`.
      log_every: steps between lines of metrics, each with the values of that step.
      checkpoint_every: steps between checkpoints; there is always one at the end.
      examples_per_step: batch size, for the displayed rate.
      keep: number of newest checkpoints to keep.
      hooks: functions called at intervals of steps.
      schedule: steps taken -> learning rate, to log it.
      rules: the parameters' shardings (`parallel.param_shardings`).
      max_seconds: stop the run after this training time, over all sessions and without compilation.
      accumulate: number of micro-batches per step, to save memory.
      ema_decay: decay of averaged parameters, kept in `state.extra`; 0 keeps none.
      fixed: arrays that every step reads besides its batch (`batch["fixed"]`), such as a teacher's parameters.
      keepers: what methods keep in `state.extra` beside the parameters.
      writer: writes the metrics; by default to this run directory, closed at the end.
      desc: the progress bar's label.

    Checkpoints are written while training goes on, which takes the host's memory for one more copy of the state; the
    last one of a session, and those of several processes, are waited for.

    The first SIGTERM or SIGINT finishes the step, saves and returns; an evaluation ends at its next batch and is
    repeated later. After a kill at any other moment, the next call resumes with bitwise the same numbers on the same
    kind of machine.

    Raises:
      UserError: a loss, gradient or parameter is not finite; the data ends; the checkpoints do not fit; another
        process trains in `workdir`.
    """
    workdir = Path(workdir)
    start, key = time.monotonic(), jax.random.key(seed)
    with contextlib.ExitStack() as stack:
        lost_from_start = lost_since(workdir, None)  # before the lock has a new time
        if processes.leads():
            stack.enter_context(locked(workdir))
        store = stack.enter_context(CheckpointStore(workdir / "checkpoints", keep))
        state, first, past = _resume(
            store, params, optimizer, batches, mesh, rules, ema=bool(ema_decay), keepers=keepers
        )
        clock = _Clock(start - past["seconds"], max_seconds)
        wall = WallClock(past.get("spent", {"steps": past["seconds"]}), start)
        lost = lost_since(workdir, past["saved_at"]) if "saved_at" in past else 0.0 if first else lost_from_start
        if "metrics" in past and processes.leads():
            warn_if_changed(workdir, past["metrics"])
        log: Any = _rewound(writer, first, workdir, stack)
        wall.lose(_lost_in_all(log, first, lost))
        stop = stack.enter_context(StopSignal())
        bar = stack.enter_context(progress(desc, total_steps, first, seconds_left=clock.left))
        losses = LossWatch(store)
        shardings = jax.tree.map(lambda x: x.sharding, state)
        beside = {FIXED: parallel.replicate(mesh, dict(fixed))} if fixed else {}
        options = {"accumulate": accumulate, "ema_decay": ema_decay, "keepers": keepers}
        programs = _Programs(loss_fn, optimizer, shardings, **options)
        if first:
            _log.info("%s: resuming from step %d of %d (%s).", desc, first, total_steps, store.path(first))

        def run_hooks(step: int, last: bool) -> bool:
            """Runs the hooks due after a step; returns False if a signal ended them early, so that all are repeated."""
            for hook in hooks:
                if last or step % hook.interval == 0:
                    losses.check()
                    try:
                        with stop.interrupting(), wall.on(EVALUATION):
                            hook.run(step, state, log)
                    except Interrupted:
                        log.forget(step)
                        return False
                    bar.restart_clock()
            return True

        # A session takes at least one step, unless time is already up, so there is something to save and evaluate.
        step, stopped = first, _agreed("time" if past["last"] and clock.is_up() else None)
        due = past.get("due", False)
        wall.begin()
        if due:
            log.forget(step)
            due = not run_hooks(step, step == total_steps or past["last"])
            if due:
                stop.heeded = True
                return FitResult(state, step, "signal", clock.seconds(), stop.received or "", wall.spent())
        while step < total_steps and stopped is None:
            with wall.on(DATA):
                batch = parallel.place_batch(mesh, _next_batch(batches, step)) | beside
            store.check()
            train_step, is_new = programs.at(step)
            if is_new:
                with clock.left_out(), wall.on(COMPILE), _compiling(desc, step + 1, log):
                    state, metrics = jax.block_until_ready(train_step(state, batch, key))
                bar.restart_clock()
            else:
                state, metrics = train_step(state, batch, key)
            step += 1
            losses.add(step, metrics)
            bar.update(examples_per_step, **losses.latest)

            # Several processes stop together, and synchronise no more often than they write.
            if jax.process_count() == 1 or step % log_every == 0:
                stopped = _agreed(_reason_to_stop(clock, stop))
            # A run that is out of time ends here with a last evaluation; an interrupted one resumes later.
            last = step == total_steps or stopped == "time"
            if last or step % log_every == 0:
                losses.check()
                log.metrics(step, "train", jax.device_get(metrics) | _learning_rate(schedule, step))
                log.timing(step, _rates(bar.images_per_second(done=True), examples_per_step))
                bar.restart_clock()
            due = not run_hooks(step, last)
            if due:
                stopped = "signal"
            if last or stopped or step % checkpoint_every == 0:
                losses.check()
                check_sound(state, step, store)
                past = {"batches": batches.get_state(), "seconds": clock.seconds(), "last": last, "due": due}
                with wall.on(SAVE):
                    log.sync()
                    past |= {"metrics": log.extent(), "spent": wall.spent(), "saved_at": time.time()}
                    store.save(step, state, past, background=not (last or stopped))
                bar.restart_clock()

        stopped = stopped if step < total_steps or due else None
        stop.heeded = stopped == "signal"
        _say_goodbye(desc, step, total_steps, stopped, stop, store)
        return FitResult(state, step, stopped, clock.seconds(), stop.received or "", wall.spent())


def _resume(
    store: CheckpointStore,
    params: dict[str, Any],
    optimizer: optax.GradientTransformation,
    batches: Batches,
    mesh: Mesh,
    rules: parallel.Rules,
    **extra: Any,
) -> tuple[TrainState, int, dict]:
    """Returns (state, steps taken, other saved values) from the newest checkpoint, or the initial ones."""
    restored = store.restore_latest(states.abstract(params, optimizer, mesh, rules, **extra))
    if restored is None:
        return states.create(params, optimizer, mesh, rules, **extra), 0, {"seconds": 0.0, "last": False}
    step, state, past = restored
    batches.set_state(past["batches"])
    return state, step, past


def _rewound(writer: Writer | None, first: int, workdir: Path, stack: contextlib.ExitStack) -> Writer | Silent:
    resume_step = first or BEGINNING
    if not processes.leads():
        return Silent()
    if writer is None:
        return stack.enter_context(contextlib.closing(Writer(workdir, resume_step)))
    writer.rewind(resume_step)
    return writer


def _lost_in_all(log: Any, step: int, seconds: float) -> float:
    """Notes the time that the last session lost, before another one can lose it; returns that of all sessions."""
    if seconds:
        log.timing(step, {"lost_seconds": seconds})
        log.sync()
    return log.sum_of("lost_seconds")


def _next_batch(batches: Batches, step: int) -> Mapping[str, np.ndarray]:
    try:
        return next(batches)
    except StopIteration:
        raise UserError(
            f"The training data ended after step {step}. Training needs endless data: let the source repeat for as "
            "many epochs as needed."
        ) from None


@contextlib.contextmanager
def _compiling(desc: str, step: int, writer: Writer) -> Iterator[None]:
    start = time.monotonic()
    doing = f"{desc}: compiling the training step"
    _log.info("%s…", doing)
    with still(doing):
        yield
    seconds = time.monotonic() - start
    _log.info("%s: compiled and took the first step in %.1f s.", desc, seconds)
    writer.timing(step, {"first_step_seconds": seconds})


def _reason_to_stop(clock: "_Clock", stop: StopSignal) -> Literal["signal", "time"] | None:
    if stop.received is not None:
        return "signal"
    return "time" if clock.is_up() else None


def _agreed(reason: Literal["signal", "time"] | None) -> Literal["signal", "time"] | None:
    reasons = (None, "time", "signal")
    return reasons[processes.most_urgent(reasons.index(reason))]


def _learning_rate(schedule: optax.Schedule | None, step: int) -> dict[str, float]:
    # The schedule is a function of the steps taken before the one that uses its value.
    return {} if schedule is None else {"learning_rate": np.asarray(schedule(step - 1)).item()}


def _rates(images_per_second: float | None, examples_per_step: int) -> dict[str, float]:
    if images_per_second is None:
        return {}
    return {"images_per_second": images_per_second, "step_seconds": examples_per_step / images_per_second}


def _say_goodbye(
    desc: str, step: int, total_steps: int, stopped: str | None, stop: StopSignal, store: CheckpointStore
) -> None:
    if stopped == "signal":
        _log.info(
            "%s: %s received; saved step %d of %d in %s. Run the same command again to continue.",
            desc, stop.received, step, total_steps, store.path(step),
        )  # fmt: skip
    elif stopped == "time":
        _log.info("%s: out of time at step %d of %d; saved in %s.", desc, step, total_steps, store.path(step))


class _Programs:
    """The compiled training steps, one per loss."""

    def __init__(self, loss_fn: Any, *arguments: Any, **options: Any):
        self._loss_fn, self._arguments, self._options = loss_fn, arguments, options
        self._made: dict[LossFn, TrainStep] = {}

    def at(self, step: int) -> tuple[TrainStep, bool]:
        """Returns the program of the step after `step`, and whether it still has to be compiled."""
        loss_fn = self._loss_fn.at(step) if hasattr(self._loss_fn, "at") else self._loss_fn
        is_new = loss_fn not in self._made
        if is_new:
            self._made[loss_fn] = make_train_step(loss_fn, *self._arguments, **self._options)
        return self._made[loss_fn], is_new


class _Clock:
    """Training time in seconds, including earlier sessions, without compilation."""

    def __init__(self, start: float, limit: float | None):
        self._start, self._limit = start, limit

    def seconds(self) -> float:
        return time.monotonic() - self._start

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """Does not count the time inside the `with` block."""
        began = time.monotonic()
        yield
        self._start += time.monotonic() - began

    def left(self) -> float:
        """Seconds until the limit; infinite without one."""
        return math.inf if self._limit is None else self._limit - self.seconds()

    def is_up(self) -> bool:
        return self._limit is not None and self.seconds() >= self._limit
