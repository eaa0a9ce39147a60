"""What every pre-training framework promises; a new file in `jaxprune/mim` is tested by being there."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import quick_compile

from jaxprune import flops, mim, models, plugins
from jaxprune.models.swin import SwinTransformer
from jaxprune.nn.params import merge, split

QUICK = ("mae",)  # further members of the family are slow
METHODS = [pytest.param(m, marks=() if m in QUICK else pytest.mark.slow) for m in sorted(mim.methods())]
ENCODER = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
SWIN = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2), "window_size": 3}
BATCH = 3


@functools.cache
def create(method: str, **changes):
    """A small framework: what it has of the sizes that make one small."""
    cls = mim.methods()[method]
    small = {"decoder_embed_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2, "mask_patch": 8}
    own = {name: size for name, size in small.items() if name in plugins.parameters(cls)}
    # A framework that learns from other networks gets ones of another width and patch size.
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 0}
    networks = {name: models.create("vit", **sizes, rngs=nnx.Rngs(1)) for name in cls.networks}
    encoder = SWIN if cls.encoder_class is SwinTransformer else ENCODER
    return mim.create(method, **{**encoder, **own, **networks, **changes}, rngs=nnx.Rngs(0))


@functools.cache
def images() -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).normal(size=(BATCH, 32, 32, 3)), jnp.float32)


def compiled(function):
    return jax.jit(function, compiler_options=quick_compile())


@pytest.mark.parametrize("method", METHODS)
def test_everything_that_is_trained_learns_from_one_trace(method):
    chex.clear_trace_counter()
    parts = split(create(method))

    @compiled
    @chex.assert_max_traces(n=1)
    def gradients(params, rest, images, key):
        def loss(params):
            loss, aux = merge(parts.graph, params, rest)(images, key=key)
            return loss, aux

        return jax.value_and_grad(loss, has_aux=True)(params)

    (loss, aux), found = gradients(parts.params, parts.rest, images(), jax.random.key(0))
    model = create(method)
    assert np.isfinite(loss)
    for name, gradient in found.items():
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, name
    assert aux.pred.shape[:2] == aux.masked.shape == aux.retained.shape == (BATCH, model.num_patches)
    np.testing.assert_array_equal(aux.masked.sum(1), model.masker.num_masked)
    np.testing.assert_array_equal(aux.retained.sum(1), model.masker.num_retained)
    assert not (aux.retained & ~aux.masked).any()
    again, _ = gradients(parts.params, parts.rest, images(), jax.random.key(0))
    assert again[0] == loss


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_is_nearly_the_same(method):
    whole, half = create(method), create(method, dtype=jnp.bfloat16)
    loss = compiled(lambda images, key: [model(images, key=key)[0] for model in (whole, half)])
    full, rough = loss(images(), jax.random.key(0))
    assert rough.dtype == jnp.float32
    np.testing.assert_allclose(rough, full, rtol=0.05)


@pytest.mark.parametrize("method", METHODS)
def test_it_draws_a_picture_and_describes_itself(method):
    model = create(method)
    picture = compiled(lambda images, key: model.picture(images, key))(images(), jax.random.key(0))
    assert picture.images.shape == images().shape and np.isfinite(picture.images).all()
    assert picture.masked.shape == picture.thrown.shape == picture.predicted.shape == (BATCH, model.num_patches)
    assert not (picture.thrown & ~picture.masked).any()
    assert model.summary().endswith(".")


@pytest.mark.parametrize("method", METHODS)
def test_the_compiler_counts_the_same(method):
    stages = mim.methods()[method].encoder_class is SwinTransformer
    depth = {"depths": (1, 1), "num_heads": (4, 8)} if stages else {"depth": 1, "num_heads": 4}
    sizes = {"embed_dim": 256, **depth}
    decoder = {"decoder_embed_dim": 256, "decoder_depth": 1, "decoder_num_heads": 4, "mask_ratio": 0.5}
    known = plugins.parameters(mim.methods()[method])
    model = create(method, **sizes, **{name: value for name, value in decoder.items() if name in known})
    parts = split(model)

    @jax.jit
    def loss(params, rest, images, key):
        return merge(parts.graph, params, rest)(images, key=key)[0]

    images = jax.ShapeDtypeStruct((8, 32, 32, 3), jnp.float32)
    program = loss.lower(parts.params, parts.rest, images, jax.eval_shape(lambda: jax.random.key(0))).compile()
    # The compiler counts elementwise work as well, which is a larger share in a small model.
    counted = 8 * model.flops(as_published=False).total
    np.testing.assert_allclose(flops.compiled_flops(program), counted, rtol=0.05)
