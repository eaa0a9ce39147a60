import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import golden, nhwc

from jaxprune import ops
from jaxprune.errors import UserError

GOLDEN = golden("mim/depthwise_conv")


@pytest.mark.parametrize("implementation", ["shift_add", "grouped"])
@pytest.mark.parametrize("k", [3, 5, 7, 9, 11])
def test_depthwise_matches_torch(k, implementation):
    x = jnp.asarray(nhwc(GOLDEN["x_zero_filled"]))
    kernel = jnp.asarray(GOLDEN[f"k{k}/weight"][:, 0].transpose(1, 2, 0))
    y = ops.depthwise_conv2d(x, kernel, jnp.asarray(GOLDEN[f"k{k}/bias"]), implementation)
    chex.assert_trees_all_close(y, nhwc(GOLDEN[f"k{k}/y"]), atol=2e-5)


@pytest.mark.parametrize(("shape", "k"), [((2, 5, 7, 3), 3), ((1, 3, 4, 2), 7)])
def test_gradients_of_both_implementations_agree(shape, k):
    rng = np.random.default_rng(0)
    shapes = (shape, (k, k, shape[-1]), shape[-1:], shape)
    *args, gradient = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]

    def pull(implementation):
        return jax.jit(lambda *args: jax.vjp(lambda *a: ops.depthwise_conv2d(*a, implementation), *args)[1](gradient))

    chex.assert_trees_all_close(pull("shift_add")(*args), pull("grouped")(*args), atol=2e-5)


def test_low_precision_is_summed_in_float32():
    x = jnp.ones((1, 13, 13, 1), jnp.bfloat16)
    y = ops.depthwise_conv2d(x, jnp.full((13, 13, 1), 1.0078125), implementation="shift_add")
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(y[0, 6, 6, 0]), 169 * 1.0078125, rtol=4e-3)


def test_even_kernels_are_refused():
    with pytest.raises(UserError, match="size 4 has no centre"):
        ops.depthwise_conv2d(jnp.zeros((1, 4, 4, 1)), jnp.zeros((4, 4, 1)))


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(3, 2, ((0, 1), (1, 1))), (5, 2, None), (2, 1, ((1, 0), (0, 1)))]
)
def test_strides_and_paddings_agree_with_the_grouped_convolution(size, stride, padding):
    x, kernel = (
        jax.random.normal(jax.random.key(0), (2, 7, 9, 3)),
        jax.random.normal(jax.random.key(1), (size, size, 3)),
    )
    ours, grouped = (
        ops.depthwise_conv2d(x, kernel, None, implementation, stride=stride, padding=padding)
        for implementation in ("shift_add", "grouped")
    )
    chex.assert_trees_all_close(ours, grouped, atol=1e-5)
