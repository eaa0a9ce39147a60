"""One optimizer step as one compiled program."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from jaxprune.nn.batch_norm import MOMENTUM
from jaxprune.train.state import EMA, RUNNING, SNAPSHOT, Snapshot, TrainState

# The key of a batch for arrays that are not rows of it, such as a teacher's parameters; the state's copy of parameters
# is among them, under "snapshot".
FIXED = "fixed"
# The key of a loss's metrics with the batch statistics that `TrainState.extra["running"]` follows.
OBSERVED = "observed"

Params = dict[str, jax.Array]
Batch = Mapping[str, Any]
Metrics = dict[str, jax.Array]
LossFn = Callable[[Params, Batch, jax.Array], tuple[jax.Array, Metrics]]
TrainStep = Callable[[TrainState, Batch, jax.Array], tuple[TrainState, Metrics]]


def make_train_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    shardings: TrainState | None = None,
    *,
    accumulate: int = 1,
    ema_decay: float = 0.0,
    snapshot: Snapshot | None = None,
) -> TrainStep:
    """Returns the jitted `step(state, batch, key) -> (state, metrics)`; the state passed in is donated.

    Args:
      loss_fn: (params, batch, key) -> (loss, {name: scalar}).
      optimizer: turns gradients into updates.
      shardings: shardings of the new state (`state_shardings`); by default left to the compiler.
      accumulate: number of micro-batches, processed one after the other; gradients and metrics are averaged.
      ema_decay: decay of the averaged parameters `state.extra["ema"]`, if the state has them.
      snapshot: when the copy of parameters `state.extra["snapshot"]` is refreshed; the loss finds it in
        `batch["fixed"]["snapshot"]`.

    `key` is the run's key, the same at every step: the step's own key is folded in from `state.step`, so a resumed run
    draws the same numbers. The metrics are `loss`, `grad_norm` (before clipping) and those of `loss_fn`.
    """

    def step(state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(key, state.step)
        if snapshot is not None:
            batch = {**batch, FIXED: {**batch.get(FIXED, {}), SNAPSHOT: state.extra[SNAPSHOT]}}
        (loss, metrics), grads = gradient(state.params, batch, key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = cast(Params, optax.apply_updates(state.params, updates))
        extra = state.extra
        if RUNNING in extra:
            observed = metrics.pop(OBSERVED)
            extra = {**extra, RUNNING: optax.incremental_update(observed, extra[RUNNING], MOMENTUM)}
        if EMA in extra:
            extra = {**extra, EMA: optax.incremental_update(params, extra[EMA], 1.0 - ema_decay)}
        if snapshot is not None:
            kept = snapshot.refreshed(state.step + 1, params, extra[SNAPSHOT])
            extra = {**extra, SNAPSHOT: kept}
        metrics = {**metrics, "loss": loss, "grad_norm": optax.tree.norm(grads)}
        return TrainState(state.step + 1, params, opt_state, extra), metrics

    gradient = jax.value_and_grad(loss_fn, has_aux=True)
    if accumulate > 1:
        gradient = _in_parts(gradient, accumulate)
    if shardings is None:
        return jax.jit(step, donate_argnums=0)
    # Metrics are replicated like the step counter, so that any process can read them.
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, shardings.step))


def _in_parts(gradient: Callable, parts: int) -> Callable:
    """The gradient of a batch as the mean over micro-batches, to save memory."""

    def part(array: jax.Array) -> jax.Array:
        # Every micro-batch takes strided rows of the batch, so that it stays sharded over all devices.
        rows = array.reshape(-1, parts, *array.shape[1:])
        return jnp.moveaxis(rows, 1, 0)

    def total(params: Params, batch: Batch, key: jax.Array) -> Any:
        def add(sums: Any, piece: Any) -> tuple[Any, None]:
            index, rows = piece
            return jax.tree.map(jnp.add, sums, gradient(params, rows | fixed, jax.random.fold_in(key, index))), None

        fixed = {name: value for name, value in batch.items() if name == FIXED}
        pieces = {name: part(value) for name, value in batch.items() if name != FIXED}
        first = {name: value[0] for name, value in pieces.items()} | fixed
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradient, params, first, key))
        sums, _ = jax.lax.scan(add, zeros, (jnp.arange(parts), pieces))
        return jax.tree.map(lambda x: x / parts, sums)

    return total
