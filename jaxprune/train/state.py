"""The state of a training run."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxprune import parallel

EMA = "ema"  # key of the averages in `TrainState.extra`: of the parameters, and of what keepers have `averaged`


class Keeper(Protocol):
    """How a method keeps arrays beside its parameters: learned without gradients, stored and resumed with them.

    They are in `TrainState.extra` under the keeper's name; the loss finds them in `batch["kept"]` under that name. What
    the loss reports under it, among its metrics, is passed to `updated` and not logged.

    The arrays of a keeper with `averaged = True`, which have names that no parameter has, are averaged with the
    parameters where a run averages these: running statistics belong to the parameters beside them.
    """

    @property
    def name(self) -> str: ...

    def initial(self, params: dict[str, Any]) -> dict[str, Any]:
        """The arrays before the first step, by name; those of `params` are copied."""
        ...

    def updated(self, kept: dict[str, Any], observed: Any, steps: jax.Array, params: dict[str, Any]) -> dict[str, Any]:
        """The arrays after `steps` steps, which led to `params`; `observed` is None if the loss reports nothing."""
        ...


class TrainState(NamedTuple):
    """A pytree; randomness and the learning rate are functions of `step`, so nothing else has to be stored."""

    step: jax.Array  # int32 scalar: optimizer steps taken
    params: dict[str, jax.Array]  # {dotted name: array}
    opt_state: Any
    extra: dict[str, Any]  # averaged parameters, and what methods keep (`Keeper`)


def averaged(params: dict[str, jax.Array], extra: dict[str, Any], keepers: Sequence[Keeper]) -> dict[str, jax.Array]:
    """Returns the arrays that are averaged over the steps, by name: the parameters, and those of `averaged` keepers."""
    kept = [extra[keeper.name] for keeper in keepers if getattr(keeper, "averaged", False)]
    return {**params, **{name: array for arrays in kept for name, array in arrays.items()}}


def create(
    params: dict[str, Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    rules: parallel.Rules = (),
    *,
    ema: bool = False,
    keepers: Sequence[Keeper] = (),
) -> TrainState:
    """Returns the initial state, placed on the mesh; the caller's arrays are copied, never donated.

    Args:
      ema: whether to keep averages, see `averaged`.
      keepers: what methods keep beside the parameters.
    """
    shardings = state_shardings(params, optimizer, mesh, rules, ema=ema, keepers=keepers)
    placed = jax.device_put(params, shardings.params)
    return jax.jit(partial(_initial, optimizer, ema, keepers), out_shardings=shardings)(placed)


def abstract(
    params: dict[str, Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    rules: parallel.Rules = (),
    *,
    ema: bool = False,
    keepers: Sequence[Keeper] = (),
) -> TrainState:
    """Returns `create`'s result as shapes, dtypes and shardings only, to restore a checkpoint."""
    shapes = jax.eval_shape(partial(_initial, optimizer, ema, keepers), params)
    shardings = state_shardings(params, optimizer, mesh, rules, ema=ema, keepers=keepers)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)


def state_shardings(
    params: dict[str, Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    rules: parallel.Rules = (),
    *,
    ema: bool = False,
    keepers: Sequence[Keeper] = (),
) -> TrainState:
    """Returns the sharding of every leaf of the state: an optimizer's moments are sharded like their parameters."""
    by_name = parallel.param_shardings(mesh, params, rules)
    replicated = NamedSharding(mesh, PartitionSpec())

    def sharding(path: tuple, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        name = str(getattr(path[-1], "key", ""))
        mirrors = name in by_name and leaf.shape == params[name].shape
        return by_name[name] if mirrors else replicated

    return jax.tree_util.tree_map_with_path(
        sharding, jax.eval_shape(partial(_initial, optimizer, ema, keepers), params)
    )


def _initial(
    optimizer: optax.GradientTransformation,
    ema: bool,
    keepers: Sequence[Keeper],
    params: dict[str, jax.Array],
) -> TrainState:
    # Copied, because the first training step donates (destroys) the state's buffers.
    params = jax.tree.map(jnp.copy, params)
    extra = {keeper.name: jax.tree.map(jnp.copy, keeper.initial(params)) for keeper in keepers}
    extra |= {EMA: jax.tree.map(jnp.copy, averaged(params, extra, keepers))} if ema else {}
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), extra)
