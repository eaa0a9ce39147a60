import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import golden, in_names, nhwc

from jaxprune import ops
from jaxprune.errors import UserError
from jaxprune.ops.convolution import as_operators

GOLDEN = golden("mim/depthwise_conv")


@pytest.mark.parametrize("implementation", ["shift_add", "grouped"])
@pytest.mark.parametrize("k", in_names(GOLDEN, r"k(\d+)/y"))
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


@pytest.mark.parametrize(
    ("size", "stride"),
    [((3, 3), 2), pytest.param((3, 3), 1, marks=pytest.mark.slow), pytest.param((5, 1), 1, marks=pytest.mark.slow)],
)
def test_clips_agree_with_the_grouped_convolution(size, stride):
    frames, k = size
    clips = jax.random.normal(jax.random.key(0), (2, 4, 5, 6, 3))
    kernel = jax.random.normal(jax.random.key(1), (frames, k, k, 3))
    both = [
        ops.depthwise_conv3d(clips, kernel, implementation, stride=stride)
        for implementation in ("shift_add", "grouped")
    ]
    chex.assert_trees_all_close(*both, atol=1e-5)
    assert both[0].shape == (2, 4, -(-5 // stride), -(-6 // stride), 3)


def test_programs_for_other_compilers_have_the_grouped_convolution():
    clips, kernel = jnp.ones((1, 3, 4, 4, 2)), jnp.ones((3, 3, 3, 2))
    for call, args in ((ops.depthwise_conv3d, (clips, kernel)), (ops.depthwise_conv2d, (clips[0], kernel[0]))):
        assert "conv_general_dilated" not in str(jax.make_jaxpr(call)(*args)), call
        with as_operators():
            traced = str(jax.make_jaxpr(lambda *args, call=call: call(*args))(*args))
        assert "conv_general_dilated" in traced, call


def test_one_frame_of_a_clip_sees_only_the_middle_of_the_kernel():
    clip, kernel = jnp.ones((1, 1, 4, 4, 2)), jnp.zeros((5, 1, 1, 2)).at[2].set(3.0).at[0].set(7.0)
    chex.assert_trees_all_equal(ops.depthwise_conv3d(clip, kernel, "shift_add"), 3 * clip)
    with pytest.raises(UserError, match=r"A depth-wise kernel of \(2, 3, 3\) has no centre"):
        ops.depthwise_conv3d(clip, jnp.ones((2, 3, 3, 2)))


@pytest.mark.slow
def test_clips_have_the_gradient_of_the_grouped_convolution():
    clips = jax.random.normal(jax.random.key(0), (1, 4, 5, 6, 3))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 3))

    def loss(implementation):
        return lambda x, kernel: jnp.sin(ops.depthwise_conv3d(x, kernel, implementation)).sum()

    both = [jax.grad(loss(implementation), (0, 1))(clips, kernel) for implementation in ("shift_add", "grouped")]
    chex.assert_trees_all_close(*both, atol=1e-4)
