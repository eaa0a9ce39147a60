"""What every dense network keeps: one score for each class and pixel, finite gradients, and maps under any plan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import quick_compile, slow_but

from jaxprune import checkpoints, dense, reduction
from jaxprune.errors import UserError
from jaxprune.flops.segmenters import of_segmenter
from jaxprune.nn.params import merge, split, variables

SIZES = {"img_size": (24, 32), "patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2}
SMALL = {"features": 8, "auxiliary_features": 8, "head_heads": 2, "layers": 1, "dropout": 0.5}
CLASSES = 5


def build(name, encoder="vit", **arguments):
    takes = dense.plugins.parameters(dense.methods()[name])
    options = {key: value for key, value in SMALL.items() if key in takes}
    return dense.create(
        name, encoder=encoder, num_classes=CLASSES, **{**SIZES, **options, **arguments}, rngs=nnx.Rngs(0)
    )


def images(batch=2):
    return jax.random.normal(jax.random.key(0), (batch, *SIZES["img_size"], 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["linear"], dense.methods()))
def test_scores_under_plans(name):
    model, inputs = build(name), images()
    plans = [None, reduction.Plan("topk", keep_rate=0.5, reduction_loc=(1,)), reduction.Plan("tome", r=(8, 8))]
    outputs = []
    for plan in plans:
        network = model if plan is None else reduction.apply(model, plan)
        parts = split(network)
        call = jax.jit(lambda p, x, parts=parts: merge(parts.graph, p, parts.rest)(x), compiler_options=quick_compile())
        outputs.append(np.asarray(call(parts.params, inputs)))
        assert outputs[-1].shape == (*inputs.shape[:3], CLASSES) and np.isfinite(outputs[-1]).all()
        np.testing.assert_allclose(call(parts.params, inputs[::-1])[::-1], outputs[-1], atol=1e-5)
    assert not np.allclose(outputs[0], outputs[1], atol=1e-5) and not np.allclose(outputs[0], outputs[2], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["linear"], dense.methods()))
def test_gradients_reach_every_parameter(name):
    model, inputs = build(name), images()
    parts = split(model)
    labels = jax.random.randint(jax.random.key(1), inputs.shape[:3], 0, CLASSES).at[:, :3].set(255)

    def loss(params):
        total, aux = merge(parts.graph, params, parts.rest).loss(inputs, labels, key=jax.random.key(2))
        return total, aux.losses

    (total, losses), grads = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=quick_compile())(
        parts.params
    )
    np.testing.assert_allclose(total, sum(losses.values()), rtol=1e-5)
    assert all(np.isfinite(grad).all() for grad in grads.values())
    heads = [key for key, grad in grads.items() if not key.startswith("encoder.") and not np.any(grad)]
    assert not [key for key in heads if not key.endswith("bias")]
    assert any(np.any(grad) for key, grad in grads.items() if key.startswith("encoder."))


@pytest.mark.parametrize("name", dense.methods())
def test_recipes_and_arguments(name):
    model = build(name)
    assert model.recipe.kind == "dense" and model.recipe.as_dict()["name"] == name
    assert model.preprocessing == model.encoder.preprocessing
    with pytest.raises(UserError, match="featurs"):
        build(name, featurs=3)
    with pytest.raises(UserError, match=r"integer|float"):
        model(jnp.zeros((1, *SIZES["img_size"], 3), jnp.uint8))


STAGES = {"img_size": 64, "embed_dim": 8}
HIERARCHICAL = {
    "swin_tiny_patch4_window7_224": {**STAGES, "depths": (1,) * 4, "num_heads": (1, 1, 2, 2), "window_size": 2},
    "convnext_tiny": {"depths": (1,) * 4, "dims": (8, 8, 16, 16), "patch_size": 4},
    "hiera_tiny_224": {**STAGES, "num_heads": 1, "stages": (1,) * 4},
}
MAPS_OF_ONE_GRID = {"segvit": (-1,)}  # of heads that read no others


def on_stages(name, encoder, **arguments):
    takes = dense.plugins.parameters(dense.methods()[name])
    options = {key: value for key, value in SMALL.items() if key in takes}
    sizes = {**HIERARCHICAL[encoder], **options, **arguments}
    return dense.create(name, encoder=encoder, num_classes=CLASSES, **sizes, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("encoder", slow_but(list(HIERARCHICAL)[:1], HIERARCHICAL))
@pytest.mark.parametrize("name", dense.methods())
def test_heads_on_hosts_with_stages(name, encoder):
    """Maps of several grids, at the places of a stage; a head that cannot read them says so."""
    if name in ("dtop", "segvit"):
        with pytest.raises(UserError, match=r"use a ViT, or another head|have several grids: choose maps of one"):
            nnx.eval_shape(lambda: on_stages(name, encoder))
    if name == "dtop":
        return
    options = {"indices": MAPS_OF_ONE_GRID[name]} if name in MAPS_OF_ONE_GRID else {}
    model = nnx.eval_shape(lambda: on_stages(name, encoder, **options))
    scores = nnx.eval_shape(lambda model: model(jnp.zeros((2, 64, 64, 3))), model)
    assert scores.shape == (2, 64, 64, CLASSES)
    counted = of_segmenter(model)
    assert counted.encoder > 0 and counted.head > 0


def test_maps_that_a_host_has_not_are_refused():
    with pytest.raises(UserError, match="the encoder has 4 maps, from 0 to 3"):
        nnx.eval_shape(lambda: on_stages("upernet", "convnext_tiny", indices=(0, 1, 2, 4)))
    for indices, remedy in (((1, 1), r"\(1,\)"), ((-1, 3), r"\(3,\)")):
        with pytest.raises(UserError, match=rf"name a map twice, and each is read once: use {remedy}"):
            nnx.eval_shape(lambda indices=indices: on_stages("linear", "convnext_tiny", indices=indices))


def test_maps_are_read_from_the_first_on_in_whatever_order_they_are_named():
    model = nnx.eval_shape(lambda: on_stages("upernet", "convnext_tiny", indices=(3, -2, 0, 1)))
    assert model.indices == (0, 1, -2, 3)
    assert nnx.eval_shape(lambda model: model(jnp.zeros((1, 64, 64, 3))), model).shape == (1, 64, 64, CLASSES)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", HIERARCHICAL)
def test_gradients_reach_hosts_with_stages(encoder):
    parts = split(on_stages("upernet", encoder))
    inputs = jax.random.normal(jax.random.key(0), (1, 64, 64, 3))
    labels = jax.random.randint(jax.random.key(1), (1, 64, 64), 0, CLASSES)
    loss = lambda params: merge(parts.graph, params, parts.rest).loss(inputs, labels, key=jax.random.key(2))[0]
    grads = jax.jit(jax.grad(loss), compiler_options=quick_compile())(parts.params)
    assert all(np.isfinite(grad).all() for grad in grads.values())
    for place in ("encoder.patch_embed", "encoder.stem", "head."):
        reached = [np.any(grad) for name, grad in grads.items() if name.startswith(place)]
        assert not reached or any(reached), place


@pytest.mark.slow
def test_dropout_needs_a_key():
    model = build("fcn")
    with pytest.raises(UserError, match="needs a key"):
        model(images(), train=True)


@pytest.mark.parametrize("name", dense.methods())
def test_saved_and_loaded(name, tmp_path):
    fast = reduction.apply(build(name), reduction.Plan("topk", keep_rate=0.5, reduction_loc=(1,)))
    checkpoints.save_model(fast, tmp_path / "seg.safetensors")
    loaded = checkpoints.load_model(tmp_path / "seg.safetensors")
    assert loaded.plan == fast.plan and loaded.preprocessing == fast.preprocessing
    first, second = variables(fast), variables(loaded)
    assert set(first) == set(second)
    assert all(np.array_equal(first[key][...], second[key][...]) for key in first)
