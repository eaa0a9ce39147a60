"""A module's arrays under dotted names, and back: the boundary between NNX and plain functions."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array


class Fixed(nnx.Variable):
    """An array that is loaded and saved with the weights but not trained."""


class Computed(Fixed):
    """A table that is computed from the sizes of its network, such as sine-cosine positions."""


class Graph(NamedTuple):
    """The structure of a module without its arrays; hashable."""

    definition: Any
    layout: Any
    names: tuple[str, ...]


class Split(NamedTuple):
    """A split module.

    Attributes:
      graph: its structure.
      params: the trained arrays, {dotted name: array}.
      rest: every other array (fixed tables, statistics), {dotted name: array}.
    """

    graph: Graph
    params: dict[str, Array]
    rest: dict[str, Array]


def dotted(path: tuple) -> str:
    """Returns a path such as ("blocks", 0, "norm1", "scale") as "blocks.0.norm1.scale"."""
    return ".".join(str(part) for part in path)


def variables(module: nnx.Module) -> dict[str, nnx.Variable]:
    """Returns the variables of a module by dotted name; assigning to `[...]` of one changes the module."""
    by_name, ids = {}, set()
    for path, variable in nnx.iter_graph(module):
        # A shared variable has one name, the first; Flax before 0.12.1 lists it under both.
        if isinstance(variable, nnx.Variable) and id(variable) not in ids:
            ids.add(id(variable))
            by_name[dotted(path)] = variable
    return by_name


def split(module: nnx.Module) -> Split:
    """Splits a module, so that a training step is a plain function of plain dicts."""
    definition, state = nnx.split(module)
    leaves, layout = jax.tree.flatten(state)
    names = [""] * len(leaves)
    trained = {}
    for path, variable in nnx.to_flat_state(layout.unflatten(range(len(leaves)))):
        (index,) = jax.tree.leaves(variable)
        names[index] = dotted(path)
        trained[dotted(path)] = isinstance(variable, nnx.Param)
    arrays = dict(zip(names, leaves, strict=True))
    params = {name: array for name, array in arrays.items() if trained[name]}
    rest = {name: array for name, array in arrays.items() if not trained[name]}
    return Split(Graph(definition, layout, tuple(names)), params, rest)


def unfilled(make: Callable[[], Any]) -> Any:
    """Builds a network with zeros as initial parameters, for weights to be loaded into.

    Random initialisation compiles a program per shape; a ConvNet with fifty shapes takes seconds.
    """
    graph, params, rest = split(without_parameters(make))
    return merge(graph, {name: jnp.asarray(np.zeros(p.shape, p.dtype)) for name, p in params.items()}, rest)


def without_parameters(make: Callable[[], Any]) -> Any:
    """Builds a network whose trained parameters are shapes without values; its other arrays are computed.

    >>> layer = without_parameters(lambda: nnx.Linear(512, 2048, rngs=nnx.Rngs(0)))
    >>> layer.kernel.shape, split(layer).params["bias"]
    ((512, 2048), ShapeDtypeStruct(shape=(2048,), dtype=float32))
    """
    graph, params, _ = split(nnx.eval_shape(make))
    return merge(graph, params, jax.jit(lambda: split(make()).rest)())


def merge(graph: Graph, params: dict[str, Any], rest: dict[str, Any]) -> Any:
    """Rebuilds a module; the inverse of `split`."""
    arrays = {**params, **rest}
    return nnx.merge(graph.definition, graph.layout.unflatten([arrays[name] for name in graph.names]))


def jitted(module: Any, call: Callable[..., Any] = lambda module, *args: module(*args)) -> Callable[..., Any]:
    """Returns `call(module, …)` as a compiled function of the other arguments.

    The module's arrays are arguments of the program, not constants as with `jax.jit(module.__call__)`.

    Args:
      call: what to compute, by default the module's own call.
    """
    parts = split(module)
    compiled = jax.jit(lambda params, rest, *args: call(merge(parts.graph, params, rest), *args))
    return functools.partial(compiled, parts.params, parts.rest)


def copied(module: Any) -> Any:
    """Returns a copy of the module with the same arrays but separate variables."""
    graph, state = nnx.split(module)
    return nnx.merge(graph, jax.tree.map(lambda array: array, state))


def frozen(module: Any) -> Any:
    """Returns a copy of the module with the same arrays, all of them `Fixed`."""
    copy = copied(module)
    for _, node in list(nnx.iter_graph(copy)):
        if isinstance(node, nnx.Module):
            for name, value in list(vars(node).items()):
                if isinstance(value, nnx.Variable) and not isinstance(value, Fixed):
                    setattr(node, name, Fixed(value[...]))
    return copy
