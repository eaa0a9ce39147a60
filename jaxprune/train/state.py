"""The state of a training run."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxprune import parallel

# Keys of `TrainState.extra`: averaged parameters, running statistics of values that the loss observes in a batch, and
# an earlier copy of parameters.
EMA = "ema"
RUNNING = "running"
SNAPSHOT = "snapshot"


class Snapshot(NamedTuple):
    """The parameters to keep a copy of, and when to refresh it.

    Attributes:
      prefix: prefix of their names.
      first: number of steps before the first refresh; until then the copy is the initial parameters.
      every: number of steps between later refreshes.
    """

    prefix: str
    first: int
    every: int

    def of(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters to copy."""
        return {name: array for name, array in params.items() if name.startswith(self.prefix)}

    def refreshed(self, step: jax.Array, params: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
        """The copy after `step` steps."""
        due = (step >= self.first) & ((step - self.first) % self.every == 0)
        return {name: jnp.where(due, params[name], array) for name, array in kept.items()}


class TrainState(NamedTuple):
    """A pytree; randomness and the learning rate are functions of `step`, so nothing else has to be stored."""

    step: jax.Array  # int32 scalar: optimizer steps taken
    params: dict[str, jax.Array]  # {dotted name: array}
    opt_state: Any
    extra: dict[str, Any]  # learned without gradients: averaged parameters, batch statistics, …


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
    """Returns the initial state, placed on the mesh; the caller's arrays are copied, never donated.

    Args:
      ema: whether to keep an average of the parameters.
      running: initial running statistics, by name.
      snapshot: the parameters to keep a copy of.
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
    """Returns `create`'s result as shapes, dtypes and shardings only, to restore a checkpoint."""
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
    """Returns the sharding of every leaf of the state: an optimizer's moments are sharded like their parameters."""
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
