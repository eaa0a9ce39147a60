"""Multiply-accumulates of any function of a network, from its trace: all matrix products and convolutions."""

import math
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from jaxprune.ops.convolution import as_operators


def multiply_accumulates(model: Any, call: Callable[..., Any], *inputs: Any, without: str = "") -> tuple[int, Any]:
    """Returns the multiply-accumulates of `call(model, *inputs)` and the shapes of its result; nothing is computed.

    >>> from jaxprune.nn import Linear
    >>> layer = Linear(3, 5, rngs=nnx.Rngs(0))
    >>> multiply_accumulates(layer, lambda layer, x: layer(x), jax.ShapeDtypeStruct((2, 3), "float32"))[0]
    30

    Args:
      model: the network, or its abstract form under `nnx.eval_shape`.
      inputs: arrays, or shapes as `jax.ShapeDtypeStruct`.
      without: a `jax.named_scope` whose products do not count.
    """
    graph, state = nnx.split(model)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    with as_operators():
        jaxpr, result = jax.make_jaxpr(
            lambda state, *inputs: call(nnx.merge(graph, state), *inputs), return_shape=True
        )(shapes, *inputs)
    return _of_jaxpr(jaxpr.jaxpr, without), result


def _of_jaxpr(jaxpr: Any, without: str) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if without and without in str(equation.source_info.name_stack).split("/"):
            continue
        shapes = [tuple(value.aval.shape) for value in equation.invars]
        result = math.prod(equation.outvars[0].aval.shape) if equation.outvars else 0
        if equation.primitive.name == "dot_general":
            (summed, _), _ = equation.params["dimension_numbers"]
            total += result * math.prod(shapes[0][axis] for axis in summed)
        elif equation.primitive.name == "conv_general_dilated":
            outputs = shapes[1][equation.params["dimension_numbers"].rhs_spec[0]]
            total += result * math.prod(shapes[1]) // outputs
        else:
            inner = (getattr(value, "jaxpr", value) for value in equation.params.values())
            total += sum(_of_jaxpr(part, without) for part in inner if hasattr(part, "eqns"))
    return total
