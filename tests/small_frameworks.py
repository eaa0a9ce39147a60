"""Small frameworks for pre-training, and images for them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune import mim, models, plugins
from jaxprune.models.swin import SwinTransformer

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
    """Random images, (BATCH, 32, 32, 3)."""
    return jnp.asarray(np.random.default_rng(1).normal(size=(BATCH, 32, 32, 3)), jnp.float32)
