"""Divergence: a run ends at the first loss, gradient or parameter that is not finite."""

import math

import jax
import jax.numpy as jnp

from jaxprune.checkpoints.store import CheckpointStore
from jaxprune.errors import UserError
from jaxprune.train.state import TrainState


class LossWatch:
    """Stops the run at the first non-finite loss or gradient.

    It checks one step late, so that the device is always busy, and immediately before anything is written.

    Args:
      store: the run's checkpoints, to name the last good one.

    Attributes:
      latest: the loss of the last step that was checked.
    """

    def __init__(self, store: CheckpointStore):
        self._store = store
        self._pending: tuple[int, dict[str, jax.Array]] | None = None
        self.latest: dict[str, float] = {}

    def add(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Checks the step before, and keeps the metrics of this one, `loss` and `grad_norm`."""
        self.check()
        self._pending = (step, {name: metrics[name] for name in ("loss", "grad_norm")})

    def check(self) -> None:
        """Checks the last step, if it is not checked yet.

        Raises:
          UserError: its loss or its gradient is not finite.
        """
        if self._pending is None:
            return
        step, pending = self._pending
        self._pending = None
        values = jax.device_get(pending)
        for name in ("loss", "grad_norm"):
            if not math.isfinite(values[name]):
                raise _diverged(f"{name} is {values[name]}", step, self._store)
        self.latest = {"loss": float(values["loss"])}


def check_sound(state: TrainState, step: int, store: CheckpointStore) -> None:
    """Checks the state that a step leaves, before it is saved.

    Raises:
      UserError: a parameter is not finite, or the optimizer's state has a NaN.
    """
    if not all(jax.device_get(_soundness(state))):
        raise _diverged("a parameter or the optimizer's state is not finite", step, store)


def _soundness(state: TrainState) -> list[jax.Array]:
    # Some optimizers store an infinity on purpose (the best loss so far); none stores a NaN. A program for each shape,
    # which most arrays share: one program for 1,800 arrays takes XLA seconds to compile, and with one flag a minute.
    finite = [_is_finite(leaf) for leaf in jax.tree.leaves(state.params)]
    return finite + [_has_no_nan(leaf) for leaf in jax.tree.leaves((state.opt_state, state.extra))]


@jax.jit
def _is_finite(array: jax.Array) -> jax.Array:
    return jnp.all(jnp.isfinite(array))


@jax.jit
def _has_no_nan(array: jax.Array) -> jax.Array:
    return ~jnp.any(jnp.isnan(array))


def _diverged(symptom: str, step: int, store: CheckpointStore) -> UserError:
    steps = store.all_steps()
    good = (
        f"The last good checkpoint is of step {steps[-1]}: {store.path(steps[-1])}." if steps else "Nothing was saved."
    )
    return UserError(
        f"Training diverged at step {step}: {symptom}. {good} Try a lower learning rate or a longer warm-up, gradient "
        "clipping, or float32 instead of bfloat16, in a new workdir; the same command would diverge again."
    )
