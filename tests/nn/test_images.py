"""Images that were not normalised are refused while a program is traced."""

import functools
import itertools

import jax
import jax.numpy as jnp
import jaxtyping
import pytest
from flax import nnx

from jaxprune import mim, models, reduction
from jaxprune.errors import UserError
from jaxprune.nn.params import unfilled

SIZES = {"img_size": 32, "patch_size": 16, "embed_dim": 16, "depth": 2, "num_heads": 2}
DECODER = {"decoder_embed_dim": 8, "decoder_depth": 1, "decoder_num_heads": 2}


def vit():
    return models.create("vit", **SIZES, num_classes=3, rngs=nnx.Rngs(0))


NETWORKS = {
    "vit": vit,
    "reduced": lambda: reduction.apply(vit(), reduction.Plan("topk", 0.5, (1,))),
    "resnet": lambda: models.create("resnet18", rngs=nnx.Rngs(0)),
    "efficientnet": lambda: models.create("efficientnet_lite0", rngs=nnx.Rngs(0)),
    "mobileone": lambda: models.create("mobileone_s0", blocks=(1, 1, 1, 1), rngs=nnx.Rngs(0)),
    "mae": lambda: mim.create("mae", **SIZES, **DECODER, rngs=nnx.Rngs(0)),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_images_of_an_integer_dtype_are_refused(make, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is outside of the tests
    network = nnx.eval_shape(make)
    key = {"key": jax.random.key(0)} if isinstance(network, mim.Framework) else {}
    others = [getattr(network, name, None) for name in ("forward_features", "forward_intermediates")]
    for call, dtype in itertools.product(filter(None, [network, *others]), ("uint8", "int32", "bool")):
        with pytest.raises(UserError, match=rf"these are {dtype}: .*load_images\(pictures, model.preprocessing\)"):
            jax.eval_shape(functools.partial(call, **key), jnp.zeros((1, 32, 32, 3), dtype))


def test_half_precision_is_read():
    network, images = unfilled(vit), jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.bfloat16)
    assert jax.eval_shape(lambda x: network(x)[0], images).shape == (1, 3)
