"""Golden files of other sizes, which the project's own code computes: tests that read their sizes pass on them too.

They say nothing about what is right; the files beside this folder do.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from support import quick_compile

from jaxprune import checkpoints
from jaxprune.nn.params import merge, split, unfilled, variables
from jaxprune.weights.rules import to_published

Arrays = dict[str, Any]


class Family(NamedTuple):
    """Golden files of a kind, and the tests that read them.

    Attributes:
      replaced: patterns of the names of the files that give way.
      build: computes the new files, {name: arrays}.
      tests: node ids below `tests/`; one without "::" stands for the tests of a file that read golden files.
    """

    replaced: tuple[str, ...]
    build: Callable[[], dict[str, Arrays]]
    tests: tuple[str, ...]


def images(*shape: int, seed: int = 0) -> np.ndarray:
    """Random images or features in float32, multiples of 1/64."""
    return (np.random.default_rng(seed).normal(size=shape) * 64).round().astype(np.float32) / 64


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Random numbers from 0 to 1 in float32."""
    return np.random.default_rng(seed).uniform(size=shape).astype(np.float32)


def published(
    make: Callable[..., Any], *given: Any, without: tuple[str, ...] = (), **options: Any
) -> tuple[Any, Arrays]:
    """The network `make(…, rngs=)` with random weights, and these under their published names."""
    empty = lambda: unfilled(lambda: make(*given, **options, rngs=nnx.Rngs(0)))
    tensors = {name: tensor for name, tensor in to_published(drawn(empty())).items() if name not in without}
    return checkpoints.load_pretrained(empty(), tensors), tensors


def drawn(model: nnx.Module) -> Any:
    """Fills an empty network: kernels keep the size of what they multiply, and everything else is near 1 or 0."""
    random = np.random.default_rng(0)
    for name, variable in variables(model).items():
        noise = random.normal(size=variable.shape).astype(np.float32)
        if name.endswith("kernel"):
            variable[...] = noise / np.float32(np.sqrt(np.prod(variable.shape[:-1])))
        elif isinstance(variable, nnx.Param):
            variable[...] = 0.2 * noise + name.endswith("scale")
        else:  # statistics and tables, which start as they are built
            variable[...] += 0.2 * np.abs(noise)
    return model


def prefixed(tensors: Arrays, prefix: str = "w/") -> Arrays:
    """Tensors under the names of a golden file."""
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def computed(model: nnx.Module, call: Callable[..., Any], *given: Any) -> Any:
    """`call(model, …)`, compiled, as NumPy arrays."""
    parts = split(model)
    program = jax.jit(lambda params, rest, given: call(merge(parts.graph, params, rest), *given))
    compiled = program.lower(parts.params, parts.rest, given).compile(compiler_options=quick_compile())
    return jax.tree.map(np.asarray, compiled(parts.params, parts.rest, given))


def differentiated(model: nnx.Module, call: Callable[..., Any], *given: Any) -> tuple[Any, Any, Arrays]:
    """(loss, output, gradients under published names) of `call(model, …)`, a loss with its output."""
    parts = split(model)
    loss = lambda params: call(merge(parts.graph, params, parts.rest), *given)
    program = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=quick_compile())
    (value, output), gradients = program(parts.params)
    return value, output, to_published(merge(parts.graph, gradients, parts.rest))


def chosen(tensors: Arrays, names: tuple[str, ...], prefix: str) -> Arrays:
    """Some of the tensors under the names of a golden file."""
    return {f"{prefix}{name}": tensors[name] for name in names}


def fields(output: Any, *names: str) -> Arrays:
    """Some of the fields of an output."""
    return {name: getattr(output, name) for name in names}
