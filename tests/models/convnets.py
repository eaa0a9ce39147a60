"""How the tests run a ConvNet beside its golden file."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from support import golden, in_names, nhwc, quick_compile, weights

from jaxprune import checkpoints
from jaxprune.nn.params import unfilled
from jaxprune.weights.rules import to_published

CLOSE = {"atol": 2e-5, "rtol": 2e-5}


def counts(tensors: dict[str, np.ndarray], pattern: str) -> tuple[int, ...]:
    """The number of blocks in each stage; the pattern's groups are the numbers of a stage and of a block."""
    stages: dict[int, int] = {}
    for stage, block in in_names(tensors, pattern + r"\..*"):
        stages[int(stage)] = max(stages.get(int(stage), 0), int(block) + 1)
    return tuple(stages[stage] for stage in sorted(stages))


def run(model: nnx.Module, images: np.ndarray) -> tuple[np.ndarray, Any]:
    """One compiled forward pass on NCHW images."""
    graph, state = nnx.split(model)
    forward = jax.jit(lambda state, x: nnx.merge(graph, state)(x), compiler_options=quick_compile())
    return forward(state, jnp.asarray(nhwc(images)))


def check(make: Callable[[dict[str, np.ndarray]], nnx.Module], name: str) -> None:
    """The network gives the published numbers with the published weights, which export gives back.

    Args:
      make: makes the network without weights from the published tensors, whose shapes are its sizes.
    """
    file = golden(name)
    model = checkpoints.load_pretrained(unfilled(lambda: make(weights(file))), weights(file))
    logits, aux = run(model, file["x"])
    chex.assert_trees_all_close(aux.features, nhwc(file["features"]), **CLOSE)
    chex.assert_trees_all_close(logits, file["logits_f64"].astype(np.float32), **CLOSE)
    counted = {n: w for n, w in weights(file).items() if not n.endswith("num_batches_tracked")}
    chex.assert_trees_all_equal(to_published(model), counted)
