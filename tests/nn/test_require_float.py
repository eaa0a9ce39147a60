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


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_what_is_no_batch_of_images_is_refused(make, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    network = nnx.eval_shape(make)
    key = {"key": jax.random.key(0)} if isinstance(network, mim.Framework) else {}
    others = [getattr(network, name, None) for name in ("forward_features", "forward_intermediates")]
    wrong = ((None, "these are None: stack them"), ([[1.0]], "these are of type list: stack"), ("x.png", "of type str"))
    for call, (images, message) in itertools.product(filter(None, [network, *others]), wrong):
        with pytest.raises(UserError, match=message):
            call(images, **key)
    with pytest.raises(UserError, match=r"shape \(32, 32, 3\) have 3 dimensions.* images\[None\]"):
        jax.eval_shape(functools.partial(network, **key), jnp.zeros((32, 32, 3)))


def test_a_plan_is_applied_to_a_transformer_and_is_a_plan(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    plan = reduction.Plan("topk", 0.5, (1,))
    with pytest.raises(UserError, match=r"a ResNet has none: apply it to"):
        reduction.apply(nnx.eval_shape(NETWORKS["resnet"]), plan)
    for wrong in ("topk", None, 3, {plan: 1}):
        with pytest.raises(UserError, match="is not a plan: write Plan"):
            reduction.apply(unfilled(vit), wrong)
