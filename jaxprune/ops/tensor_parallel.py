"""Tensor parallelism: heads of attention, and hidden units of MLPs, on different devices (Shoeybi et al., 2019).

Of two layers in a row the first is split by its columns and the second by its rows, so that a block adds up partial
results twice. `parallel.param_shardings` places the parameters. Queries, keys and values lie side by side in one
kernel, which no sharding of the kernel itself splits by head: attention does it here.
"""

import contextlib
from collections.abc import Iterator

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped

from jaxprune.ops.trace_context import trace_context

AXIS = "tensor"  # of the mesh
_mesh = trace_context()


@contextlib.contextmanager
def split_over(mesh: Mesh | None) -> Iterator[None]:
    """Splits heads over the axis `tensor` of a mesh, if it has one, in what is traced inside the context."""
    with _mesh(mesh if mesh is not None and mesh.shape.get(AXIS, 1) > 1 else None):
        yield


def splits(num_heads: int) -> bool:
    """Whether that many heads are split over devices: they are if all devices get as many."""
    return _mesh.value is not None and num_heads % _mesh.value.shape[AXIS] == 0


def by_head(x: Shaped[Array, "*shape"], axis: int) -> Shaped[Array, "*shape"]:
    """Splits an array along its axis of heads, of which `splits` is true; the other axes are the compiler's choice."""
    spec = [PartitionSpec.UNCONSTRAINED] * x.ndim
    spec[axis] = AXIS
    return jax.lax.with_sharding_constraint(x, NamedSharding(_mesh.value, PartitionSpec(*spec)))
