"""One optimizer step as one compiled program."""

from collections.abc import Callable, Mapping
from typing import cast

import jax
import optax

from jaxprune.train.state import TrainState

Params = dict[str, jax.Array]
Batch = Mapping[str, jax.Array]
Metrics = dict[str, jax.Array]
LossFn = Callable[[Params, Batch, jax.Array], tuple[jax.Array, Metrics]]
TrainStep = Callable[[TrainState, Batch, jax.Array], tuple[TrainState, Metrics]]


def make_train_step(
    loss_fn: LossFn, optimizer: optax.GradientTransformation, shardings: TrainState | None = None
) -> TrainStep:
    """Returns the jitted `step(state, batch, key) -> (state, metrics)`; the state passed in is donated.

    Args:
      loss_fn: (params, batch, key) -> (loss, {name: scalar}).
      optimizer: turns gradients into updates.
      shardings: where the new state lives (`state_shardings`); left to the compiler if not given.

    `key` is the run's key, the same at every step: the step's own key is folded in from `state.step`, so a resumed run
    draws the same numbers. The metrics are `loss`, `grad_norm` (before any clipping) and what `loss_fn` returned.
    """

    def step(state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(key, state.step)
        (loss, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, batch, key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = cast(Params, optax.apply_updates(state.params, updates))
        metrics = {**metrics, "loss": loss, "grad_norm": optax.tree.norm(grads)}
        return TrainState(state.step + 1, params, opt_state, state.extra), metrics

    if shardings is None:
        return jax.jit(step, donate_argnums=0)
    # Metrics like the step counter: whole on every device, so that any process can read them.
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, shardings.step))
