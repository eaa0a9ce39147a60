"""Convolutions of clips: each by another product, all the same."""

import chex
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxprune.nn import Conv3d

KERNELS = [((1, 1), 1), ((1, 1), 2), ((3, 3), 2), ((3, 1), 2)]


@pytest.mark.parametrize(
    ("kernel_size", "stride"),
    [((1, 3), 2), ((3, 1), 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in KERNELS)],
)
def test_it_is_the_convolution(kernel_size, stride):
    clips = jax.random.normal(jax.random.key(0), (2, 4, 5, 6, 3))
    conv = Conv3d(3, 4, kernel_size, stride=stride, use_bias=True, rngs=nnx.Rngs(0))
    conv.bias[...] = jnp.arange(4.0)
    pads = [(size // 2, size // 2) for size in (kernel_size[0], kernel_size[1], kernel_size[1])]
    layouts = ("NDHWC", "DHWIO", "NDHWC")
    strides = (1, stride, stride)
    expected = jax.lax.conv_general_dilated(clips, conv.kernel[...], strides, pads, dimension_numbers=layouts)
    chex.assert_trees_all_close(conv(clips), expected + jnp.arange(4.0)[None, None, None, None], atol=1e-5)
