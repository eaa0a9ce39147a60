"""Rows that lie end to end in the memory of a TPU: the same rows, and the same gradient."""

import chex
import jax
import pytest

from jaxprune.ops.platform import traced_for
from jaxprune.ops.row_layout import end_to_end


@pytest.mark.parametrize(("platform", "flattened"), [("tpu", True), ("gpu", False), ("cpu", False)])
def test_values_and_gradients_stay(platform, flattened):
    x = jax.random.normal(jax.random.key(0), (2, 5, 3))
    with traced_for(platform):
        program = str(jax.make_jaxpr(end_to_end)(x))
        value, gradient = jax.jit(jax.value_and_grad(lambda x: (end_to_end(x) ** 2).sum()))(x)
    assert ("optimization_barrier" in program and "10,3" in program) == flattened
    chex.assert_trees_all_close((value, gradient), ((x**2).sum(), 2 * x), rtol=1e-6)


def test_it_is_mapped_and_differentiated_forward():
    x = jax.random.normal(jax.random.key(0), (4, 2, 5, 3))
    with traced_for("tpu"):
        mapped, change = jax.jvp(jax.vmap(end_to_end), (x,), (2 * x,))
    chex.assert_trees_all_equal((mapped, change), (x, 2 * x))
