"""What a training run carries from step to step."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxprune import parallel

# In `TrainState.extra`: the averaged parameters, the running statistics of what the loss observes in a batch, and the
# parameters as they were some steps ago.
EMA = "ema"
RUNNING = "running"
SNAPSHOT = "snapshot"


class Snapshot(NamedTuple):
    """Parameters of which a copy is kept, and when it is refreshed.

    Attributes:
      prefix: what their names begin with.
      first: after so many steps for the first time; until then it is what training began with.
      every: and then every so many.
    """

    prefix: str
    first: int
    every: int

    def of(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters that are copied."""
        return {name: array for name, array in params.items() if name.startswith(self.prefix)}

    def refreshed(self, step: jax.Array, params: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
        """The copy after `step` steps."""
        due = (step >= self.first) & ((step - self.first) % self.every == 0)
        return {name: jnp.where(due, params[name], array) for name, array in kept.items()}


class TrainState(NamedTuple):
    """A pytree; randomness and the learning rate follow from `step`, so nothing else has to be remembered."""

    step: jax.Array  # int32 scalar: optimizer steps taken
    params: dict[str, jax.Array]  # {dotted name: array}
    opt_state: Any
    extra: dict[str, Any]  # what else is learnt beside the gradient: averaged parameters, batch statistics, …


def create(
    params: dict[str, Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    rules: parallel.Rules = (),
    *,
    ema: bool = False,
    running: dict[str, Any] | None = None,
    snapshot: Snapshot | None = None,
) -> TrainState:
    """Returns the state before the first step, placed on the mesh; the caller's arrays are copied, never donated.

    Args:
      ema: whether an average of the parameters is kept beside them.
      running: the statistics to begin with, by name.
      snapshot: of which parameters a copy is kept.
    """
    shardings = state_shardings(params, optimizer, mesh, rules, ema=ema, running=running, snapshot=snapshot)
    placed = jax.device_put(params, shardings.params)
    return jax.jit(partial(_initial, optimizer, ema, running, snapshot), out_shardings=shardings)(placed)


def abstract(
    params: dict[str, Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    rules: parallel.Rules = (),
    *,
    ema: bool = False,
    running: dict[str, Any] | None = None,
    snapshot: Snapshot | None = None,
) -> TrainState:
    """Returns `create`'s result as shapes, dtypes and shardings only: what restoring a checkpoint needs."""
    shapes = jax.eval_shape(partial(_initial, optimizer, ema, running, snapshot), params)
    shardings = state_shardings(params, optimizer, mesh, rules, ema=ema, running=running, snapshot=snapshot)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)


def state_shardings(
    params: dict[str, Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    rules: parallel.Rules = (),
    *,
    ema: bool = False,
    running: dict[str, Any] | None = None,
    snapshot: Snapshot | None = None,
) -> TrainState:
    """Returns the sharding of every leaf of the state: an optimizer's moments live where their parameter lives."""
    by_name = parallel.param_shardings(mesh, params, rules)
    replicated = NamedSharding(mesh, PartitionSpec())

    def sharding(path: tuple, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        name = str(getattr(path[-1], "key", ""))
        mirrors = name in by_name and leaf.shape == params[name].shape
        return by_name[name] if mirrors else replicated

    return jax.tree_util.tree_map_with_path(
        sharding, jax.eval_shape(partial(_initial, optimizer, ema, running, snapshot), params)
    )


def _initial(
    optimizer: optax.GradientTransformation,
    ema: bool,
    running: dict[str, Any] | None,
    snapshot: Snapshot | None,
    params: dict[str, jax.Array],
) -> TrainState:
    # Copied, because the first training step donates (destroys) the state's buffers.
    params = jax.tree.map(jnp.copy, params)
    extra = {EMA: jax.tree.map(jnp.copy, params)} if ema else {}
    extra |= {RUNNING: jax.tree.map(jnp.copy, running)} if running else {}
    extra |= {SNAPSHOT: jax.tree.map(jnp.copy, snapshot.of(params))} if snapshot else {}
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), extra)
