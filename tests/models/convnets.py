"""How the tests run a ConvNet beside its golden file."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from support import golden, nhwc, quick_compile, weights

from jaxprune import checkpoints
from jaxprune.nn.params import unfilled
from jaxprune.weights.rules import to_published

CLOSE = {"atol": 2e-5, "rtol": 2e-5}


def run(model: nnx.Module, images: np.ndarray) -> tuple[np.ndarray, Any]:
    """One compiled forward pass on NCHW images."""
    graph, state = nnx.split(model)
    forward = jax.jit(lambda state, x: nnx.merge(graph, state)(x), compiler_options=quick_compile())
    return forward(state, jnp.asarray(nhwc(images)))


def check(make: Callable[[], nnx.Module], name: str) -> None:
    """The network gives the published numbers with the published weights, which export gives back."""
    file = golden(f"convnets/{name}")
    model = checkpoints.load_pretrained(unfilled(make), weights(file))
    logits, aux = run(model, file["x"])
    chex.assert_trees_all_close(aux.features, nhwc(file["features"]), **CLOSE)
    chex.assert_trees_all_close(logits, file["logits_f64"].astype(np.float32), **CLOSE)
    counted = {n: w for n, w in weights(file).items() if not n.endswith("num_batches_tracked")}
    chex.assert_trees_all_equal(to_published(model), counted)
