"""The rows of tokens, taken in the form that each platform compiles well."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import quick_compile

from jaxprune.nn.tokens import take
from jaxprune.ops import gather_tokens
from jaxprune.ops.platform import traced_for

IDS = jnp.asarray([[3, 0, -1], [1, 4, 2]], jnp.int32)


@pytest.mark.parametrize("shape", [(2, 7), (2, 7, 3), (2, 7, 3, 2)])
@pytest.mark.parametrize("num_prefix_tokens", [0, 1, 2])
def test_rows_and_their_gradients_are_the_same_on_every_platform(shape, num_prefix_tokens):
    values = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    ids = jnp.minimum(IDS, shape[1] - num_prefix_tokens - 1)
    expected = [
        [*image[:num_prefix_tokens], *image[num_prefix_tokens:][np.maximum(rows, 0)]]
        for image, rows in zip(np.asarray(values), np.asarray(ids), strict=True)
    ]

    def loss(values):
        rows = take(values, ids, num_prefix_tokens)
        return (rows**2).sum(), rows

    results = {}
    for platform in ("cpu", "tpu"):
        with traced_for(platform):
            program = jax.jit(jax.grad(loss, has_aux=True), compiler_options=quick_compile())
            results[platform] = program(values)[::-1]
        np.testing.assert_array_equal(results[platform][0], np.asarray(expected))
    np.testing.assert_array_equal(results["cpu"][1], results["tpu"][1])


def test_gathered_tokens_are_the_rows_of_each_image():
    x = jnp.arange(24.0).reshape(2, 6, 2)
    ids = jnp.asarray([[5, 0], [2, 2]])
    np.testing.assert_array_equal(gather_tokens(x, ids), np.stack([np.asarray(x)[0, [5, 0]], np.asarray(x)[1, [2, 2]]]))
