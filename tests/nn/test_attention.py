"""Queries, keys and values: the form for training on TPUs has the results and gradients of the other."""

import chex
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxprune.nn.attention import Attention
from jaxprune.ops.platform import traced_for, traced_for_gradient


@pytest.mark.parametrize("qkv_bias", [True, False, "qv"])
def test_queries_keys_and_values_are_those_of_one_product(qkv_bias):
    attention = Attention(12, 3, qkv_bias=qkv_bias, rngs=nnx.Rngs(0))
    biases = [param for param in (attention.qkv.bias, attention.q_bias, attention.v_bias) if param is not None]
    for seed, param in enumerate(biases):
        param[...] = jax.random.normal(jax.random.key(seed), param.shape)
    x = jax.random.normal(jax.random.key(9), (2, 5, 12))

    def loss(attention, x):
        heads = attention.project(x)
        return sum((weight * jnp.sin(part)).sum() for weight, part in enumerate(heads, 1)), heads

    of_both = nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    expected = of_both(attention, x)
    with traced_for("tpu"), traced_for_gradient():
        assert str(jax.make_jaxpr(attention.project)(x)).count("dot_general") == 3
        found = of_both(attention, x)
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)
