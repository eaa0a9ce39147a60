"""Networks that live in tests only: each a host that a newcomer could copy, and images for every host there is."""

import functools
import zlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hosts.clip import Clip
from hosts.conv_map import ConvMap
from hosts.windowed import Windowed
from jaxprune import models
from jaxprune.nn import Site

WIDTH, DEPTH, CLASSES, BATCH = 16, 3, 3, 2


class Kind(NamedTuple):
    """How to build a host, and what it is like.

    Attributes:
      make: builds it; arguments replace those of the tests.
      sides: of its images.
    """

    make: functools.partial
    sides: tuple[int, ...] = (16, 16)


# Weights of this size make attention differ between tokens, so that choices are not ties.
_vit = functools.partial(
    models.create,
    "vit",
    img_size=16,
    patch_size=4,
    embed_dim=WIDTH,
    depth=DEPTH,
    num_heads=2,
    num_classes=CLASSES,
    kernel_init=nnx.initializers.normal(0.3),
)
# As DINOv3: rotary positions, CLS token and registers, SwiGLU; as SigLIP: attention pooling without a CLS token.
_DINOV3 = {"style": "dinov3_swiglu", "pos_embed": "none", "reg_tokens": 2, "qkv_bias": "qv", "init_values": 1.0}
_SIGLIP = {"style": "gelu_tanh", "class_token": False, "global_pool": "map"}


def _beit(**arguments):
    """As BEiT: relative positions, whose biases are drawn, since fresh ones are zero."""
    model = _vit(style="beit", pos_embed="none", qkv_bias="qv", **arguments)
    for block in model.blocks:
        table = block.attn.relative_position_bias_table
        table[...] = arguments["rngs"].params.normal(table.shape)
    return model


HOSTS = {
    "cls": Kind(_vit),
    "none": Kind(functools.partial(_vit, class_token=False, global_pool="avg")),
    "distilled": Kind(functools.partial(_vit, dist_token=True)),
    "registers": Kind(functools.partial(_vit, reg_tokens=2, dtype=jnp.bfloat16)),
    "rotary": Kind(functools.partial(_vit, **_DINOV3)),
    "map": Kind(functools.partial(_vit, **_SIGLIP)),
    "relative": Kind(functools.partial(_beit)),
    "windowed": Kind(functools.partial(Windowed), (32, 32)),
    "conv_map": Kind(functools.partial(ConvMap)),
    "clip": Kind(functools.partial(Clip), (4, 16, 16)),
}


@functools.cache
def host(name: str, **arguments):
    """The host of a name, built once for each set of arguments that replace its own."""
    return HOSTS[name].make(**arguments, rngs=nnx.Rngs(0))


@functools.cache
def sites(name: str) -> tuple[Site, ...]:
    """The sites of that host; nothing is computed."""
    return nnx.eval_shape(lambda: HOSTS[name].make(rngs=nnx.Rngs(0))).sites()


@functools.cache
def images(name: str, batch: int = BATCH) -> jax.Array:
    """Images, or clips, for the host of a name."""
    rng = np.random.default_rng(zlib.crc32(repr(HOSTS[name].sides).encode()))
    return jnp.asarray(rng.normal(size=(batch, *HOSTS[name].sides, 3)), jnp.float32)
