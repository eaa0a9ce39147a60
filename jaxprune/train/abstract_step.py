"""A training step with shapes in place of arrays, to compile it without data and without the devices."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxprune import parallel
from jaxprune.train import state as states
from jaxprune.train.state import Keeper
from jaxprune.train.step import FIXED, make_train_step


class Step(NamedTuple):
    """What makes a training step; the fields are arguments of `loop.fit`, whose optimizer is `tx` here."""

    params: dict[str, Any]
    loss_fn: Any
    tx: optax.GradientTransformation
    ema_decay: float = 0.0
    fixed: Mapping[str, Any] | None = None
    keepers: Sequence[Keeper] = ()


def lower(
    step: Step,
    batch: Mapping[str, jax.ShapeDtypeStruct],
    mesh: Mesh,
    rules: parallel.Rules = (),
    *,
    accumulate: int = 1,
) -> Any:
    """Lowers the first training step of a run for the devices of a mesh, which may be described ones.

    Args:
      step: the step; its arrays may be shapes.
      batch: the columns of a batch, of all devices together.
      mesh: the devices.
      rules: the parameters' shardings (`parallel.param_shardings`).
      accumulate: number of micro-batches.

    Returns:
      As `jax.jit(f).lower(…)`, to compile.
    """
    options = {"ema": bool(step.ema_decay), "keepers": step.keepers}
    state = states.abstract(step.params, step.tx, mesh, rules, **options)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    train_step = make_train_step(
        step.loss_fn.at(0) if hasattr(step.loss_fn, "at") else step.loss_fn,
        step.tx,
        shardings,
        accumulate=accumulate,
        ema_decay=step.ema_decay,
        keepers=step.keepers,
    )
    everywhere = NamedSharding(mesh, PartitionSpec())
    key = jax.eval_shape(lambda: jax.random.key(0))
    rows = {name: _placed(column, parallel.batch_sharding(mesh)) for name, column in batch.items()}
    fixed = {name: _placed(array, everywhere) for name, array in (step.fixed or {}).items()}
    return train_step.lower(state, rows | ({FIXED: fixed} if fixed else {}), _placed(key, everywhere))


def _placed(tree: Any, sharding: NamedSharding) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)
