import functools

import chex
import jax
import jax.export
import jax.numpy as jnp
import pytest
from flax import nnx
from support import quick_compile, slow_but

from jaxprune.flops.traced import multiply_accumulates
from jaxprune.nn import Conv
from jaxprune.ops import winograd
from jaxprune.ops.convolution import as_operators
from jaxprune.ops.platform import traced_for

CASES = [
    ((2, 5, 7, 3), ((1, 1), (1, 1))),
    ((1, 4, 4, 2), ((0, 0), (0, 0))),
    ((1, 6, 3, 2), ((0, 1), (2, 0))),
    ((1, 3, 3, 1), ((0, 0), (0, 0))),
    ((1, 4, 5, 2), ((3, 2), (1, 0))),
]


def direct(x, kernel, padding):
    layouts = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=layouts)


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("case", slow_but(CASES[:2], CASES))
def test_equals_the_direct_convolution_and_its_gradients(case, in_parts, monkeypatch):
    shape, padding = case
    monkeypatch.setattr(winograd, "_BYTES", 0 if in_parts else 2**28)
    x = jax.random.normal(jax.random.key(0), shape)
    kernel = jax.random.normal(jax.random.key(1), (3, 3, shape[-1], 4))

    @functools.partial(jax.jit, static_argnums=0, compiler_options=quick_compile())
    def both(convolve, x, kernel):
        y, pull = jax.vjp(lambda x, kernel: convolve(x, kernel, padding), x, kernel)
        return y, pull(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    chex.assert_trees_all_close(both(winograd.conv2d_3x3, x, kernel), both(direct, x, kernel), atol=2e-5)


LARGE, SMALL = (1, 64, 64, 2), (1, 64, 63, 2)


@pytest.mark.parametrize(
    ("shape", "options", "holds"),
    [
        (LARGE, {}, True),
        ((4, 32, 32, 2), {}, True),
        (LARGE, {"padding": "SAME"}, True),
        (SMALL, {}, False),
        (LARGE, {"stride": 2}, False),
        (LARGE, {"groups": 2}, False),
        (LARGE, {"dtype": jnp.bfloat16}, False),
        (LARGE, {"kernel_size": 5}, False),
    ],
)
def test_layers_take_it_for_large_maps_on_cpu(shape, options, holds):
    conv = Conv(2, 4, **({"kernel_size": 3} | options), rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), shape)

    def traced():
        return "conv_general_dilated" not in str(jax.make_jaxpr(lambda x: conv(x))(x))

    assert traced() == holds
    with as_operators():
        assert not traced()
        y = conv(x)
    chex.assert_trees_all_close(conv(x), y, atol=2e-5)
    with traced_for("tpu"):
        assert not traced()


def test_a_layer_costs_the_same_in_either_form():
    conv = Conv(2, 4, 3, rngs=nnx.Rngs(0))
    x = jax.ShapeDtypeStruct(LARGE, jnp.float32)
    assert multiply_accumulates(conv, lambda conv, x: conv(x), x)[0] == 64 * 64 * 9 * 2 * 4


def test_a_symbolic_batch_is_convolved_at_once():
    (batch,) = jax.export.symbolic_shape("batch")
    conv = Conv(2, 4, 3, rngs=nnx.Rngs(0))
    program = jax.export.export(jax.jit(lambda x: conv(x)))(jax.ShapeDtypeStruct((batch, 64, 64, 2), jnp.float32))
    x = jax.random.normal(jax.random.key(0), (3, 64, 64, 2))
    chex.assert_trees_all_close(program.call(x), conv(x), atol=2e-5)
