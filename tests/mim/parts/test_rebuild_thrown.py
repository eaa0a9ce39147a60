"""How thrown tokens are rebuilt: kernel sizes and the aggregators of PR-MIM's Tab. 11 and 12."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import slow_but

from jaxprune import mim
from jaxprune.errors import UserError
from jaxprune.mim.parts.rebuild_thrown import (
    AGGREGATORS,
    AveragePooling,
    ConvNeXtAggregation,
    DepthwiseAggregation,
    fill_grid,
)
from jaxprune.nn.params import merge, split

GRID, DIM = (6, 6), 8


@pytest.fixture(scope="module")
def decoded():
    """Tokens on the full grid, zero where they were thrown; and where."""
    thrown = jnp.asarray(np.random.default_rng(0).permutation(36).reshape(1, 36) < 18)
    tokens = jax.random.normal(jax.random.key(0), (1, 18, DIM))
    return fill_grid(tokens, ~thrown), thrown


def create(name: str, **arguments):
    sizes = {"img_size": 24, "patch_size": 4, "embed_dim": DIM, "depth": 1, "num_heads": 2}
    decoder = {"decoder_embed_dim": DIM, "decoder_depth": 1, "decoder_num_heads": 2, "throw_ratio": 0.5}
    return mim.create(
        "mae", **sizes, **decoder, reconstruction="progressive", aggregator=name, **arguments, rngs=nnx.Rngs(0)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["depthwise"], AGGREGATORS))
def test_only_thrown_tokens_are_rebuilt_and_everything_learns(name, decoded):
    model = create(name)
    x, thrown = decoded
    rebuilt = model.decoder.aggregate(x, thrown, GRID)
    chex.assert_trees_all_equal(rebuilt[~thrown], x[~thrown])
    # A zero has no position, and still thrown tokens are not all rebuilt the same.
    assert len(np.unique(np.asarray(rebuilt[thrown]).round(6), axis=0)) > 9
    parts = split(model)
    images, key = jax.random.normal(jax.random.key(1), (2, 24, 24, 3)), jax.random.key(2)
    loss = jax.jit(jax.grad(lambda params: merge(parts.graph, params, parts.rest)(images, key=key)[0]))
    for parameter, gradient in loss(parts.params).items():
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, parameter


@pytest.mark.parametrize("kernel_size", [3, 5, 7, 9, 11])
def test_a_kernel_reaches_half_its_size(kernel_size):
    aggregate = DepthwiseAggregation(1, kernel_size, "all", rngs=nnx.Rngs(0))
    aggregate.kernel[...] = jnp.ones((kernel_size, kernel_size, 1))
    one = jnp.zeros((1, 13 * 13, 1)).at[0, 13 * 6 + 6].set(1.0)
    reached = aggregate(one, one[:, :, 0] > 0, (13, 13)).reshape(13, 13)
    row, column = np.mgrid[:13, :13]
    np.testing.assert_array_equal(reached, np.maximum(abs(row - 6), abs(column - 6)) <= kernel_size // 2)


def test_average_pooling_divides_by_the_whole_window(decoded):
    x, thrown = decoded
    grid = np.pad(np.asarray(x).reshape(6, 6, DIM), ((1, 1), (1, 1), (0, 0)))
    expected = np.array([[grid[i : i + 3, j : j + 3].sum((0, 1)) / 9 for j in range(6)] for i in range(6)])
    chex.assert_trees_all_close(AveragePooling(3, "all")(x, thrown, GRID)[0], expected.reshape(36, DIM), atol=1e-6)


def test_a_convnext_block_is_convolution_norm_mlp_and_residual(decoded):
    x, thrown = decoded
    aggregate = ConvNeXtAggregation(DIM, 3, "all", rngs=nnx.Rngs(0))
    convolved = aggregate.conv_dw(x, jnp.ones_like(thrown), GRID)
    centred = convolved - convolved.mean(-1, keepdims=True)
    normed = centred / jnp.sqrt(centred.var(-1, keepdims=True) + 1e-6)
    hidden = jax.nn.gelu(normed @ aggregate.mlp.fc1.kernel[...], approximate=False)
    expected = x + hidden @ aggregate.mlp.fc2.kernel[...]
    chex.assert_trees_all_close(aggregate(x, thrown, GRID), expected, atol=1e-5)


def test_depthwise_weights_keep_their_names():
    assert {name for name in split(create("depthwise")).params if "aggregate" in name} == {
        "decoder.aggregate.kernel",
        "decoder.aggregate.bias",
    }
    assert not [name for name in split(create("avg_pool")).params if "aggregate" in name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "convnet"}, "Did you mean 'convnext'"),
        ({"name": "avg_pool", "kernel_size": 4}, "use 5"),
        ({"name": "transformer", "aggregation": "throw"}, "Did you mean 'thrown'"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        create(**arguments)
