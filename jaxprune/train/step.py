"""One optimizer step as one compiled program."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from jaxprune.errors import UserError
from jaxprune.ops.platform import traced_for_gradient
from jaxprune.ops.tensor_parallel import split_over
from jaxprune.train.state import EMA, Keeper, TrainState, averaged

# Keys of a batch for arrays that are not rows of it: those that stay, such as a teacher's parameters, and those that
# methods keep in the state (`state.Keeper`).
FIXED = "fixed"
KEPT = "kept"

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
    keepers: Sequence[Keeper] = (),
) -> TrainStep:
    """Returns the jitted `step(state, batch, key) -> (state, metrics)`; the state passed in is donated.

    Args:
      loss_fn: (params, batch, key) -> (loss, {name: scalar}).
      optimizer: turns gradients into updates.
      shardings: shardings of the new state (`state_shardings`); by default left to the compiler.
      accumulate: number of micro-batches, processed one after the other; gradients and metrics are averaged.
      ema_decay: decay of the averages `state.extra["ema"]` (`state.averaged`), if the state has them.
      keepers: what methods keep in `state.extra` beside the parameters.

    `key` is the run's key, the same at every step: the step's own key is folded in from `state.step`, so a resumed run
    draws the same numbers. The metrics are `loss`, `grad_norm` (before clipping) and those of `loss_fn`.
    """

    def step(state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(key, state.step)
        if keepers:
            batch = {**batch, KEPT: {keeper.name: state.extra[keeper.name] for keeper in keepers}}
        with split_over(None if shardings is None else shardings.step.mesh), traced_for_gradient():
            (loss, metrics), grads = gradient(state.params, batch, key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = cast(Params, optax.apply_updates(state.params, updates))
        extra = dict(state.extra)
        for keeper in keepers:
            observed = metrics.pop(keeper.name, None)
            extra[keeper.name] = keeper.updated(extra[keeper.name], observed, state.step + 1, params)
        if EMA in extra:
            extra[EMA] = optax.incremental_update(averaged(params, extra, keepers), extra[EMA], 1.0 - ema_decay)
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
        if len(array) % parts:
            raise UserError(f"A batch of {len(array)} rows is not divided by accumulate={parts}: use a multiple of it.")
        # Every micro-batch takes strided rows of the batch, so that it stays sharded over all devices.
        rows = array.reshape(len(array) // parts, parts, *array.shape[1:])
        return jnp.moveaxis(rows, 1, 0)

    def total(params: Params, batch: Batch, key: jax.Array) -> Any:
        def add(sums: Any, piece: Any) -> tuple[Any, None]:
            index, rows = piece
            return jax.tree.map(jnp.add, sums, gradient(params, rows | beside, jax.random.fold_in(key, index))), None

        beside = {name: value for name, value in batch.items() if name in (FIXED, KEPT)}
        pieces = {name: part(value) for name, value in batch.items() if name not in beside}
        first = {name: value[0] for name, value in pieces.items()} | beside
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradient, params, first, key))
        sums, _ = jax.lax.scan(add, zeros, (jnp.arange(parts), pieces))
        return jax.tree.map(lambda x: x / parts, sums)

    return total
