"""SegViT's cascade and its losses against the published numbers."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, golden_names, in_names, quick_compile, slow_but, weights
from support import nhwc as channels_last

from jaxprune import checkpoints, dense, models
from jaxprune.errors import UserError
from jaxprune.nn.dropout import apply_dropout
from jaxprune.nn.params import merge, split
from jaxprune.weights.rules import to_published

PARTS = {"classes": "ce", "masks": "mask", "dice": "dice"}


def close(array, expected, tolerance=1e-4):
    expected = np.asarray(expected)
    np.testing.assert_allclose(array, expected, atol=tolerance * (1 + np.abs(expected).max()), rtol=0)


def published(name):
    file = golden(name)
    sizes = json.loads(str(file["config_json"]))
    heads = {"features": sizes["embed_dims"], "head_heads": sizes["num_heads"], "layers": sizes["num_layers"]}
    encoder = {
        "img_size": sizes["img_size"],
        "patch_size": sizes["img_size"] // sizes["grid"],
        "embed_dim": sizes["in_channels"],
        "depth": sizes["use_stages"],
        "num_heads": 1,
    }
    model = dense.create(
        "segvit",
        encoder="vit",
        num_classes=sizes["num_classes"],
        indices=range(sizes["use_stages"]),
        absent_weight=sizes["no_object_weight"],
        **{
            f"{ours}_weight": sizes["loss_weights"][theirs]
            for ours, theirs in zip(("class", "mask", "dice"), PARTS.values(), strict=True)
        },
        **heads,
        **encoder,
        rngs=nnx.Rngs(0),
    )
    named = {f"decode_head.{key}": value for key, value in weights(file).items()}
    return file, checkpoints.load_pretrained(model, named, new=("encoder.*",))


def loss_of(name):
    """A golden file, its network's loss as a function of parameters and maps, and these."""
    file, model = published(name)
    maps = [jnp.asarray(channels_last(file[f"feature{i}"])) for i in in_names(file, r"feature(\d+)")]
    labels, parts = jnp.asarray(file["labels"]), split(model)

    def loss(params, maps):
        module = merge(parts.graph, params, parts.rest)
        stages = module.stages(maps)
        total, aux = module.loss_of(stages, labels)
        return total, (aux.losses, stages, module.segment(maps, labels.shape[1:]))

    return file, loss, parts, maps


@pytest.mark.slow
@pytest.mark.parametrize("name", golden_names("dynamic/segvit*"))
def test_cascade_and_losses(name):
    file, loss, parts, maps = loss_of(name)
    total, (losses, stages, scores) = jax.jit(loss, compiler_options=quick_compile())(parts.params, maps)
    shape = file["labels"].shape[1:]
    close(scores, channels_last(file["pred_f64"]))
    np.testing.assert_array_equal(scores.argmax(-1), file["segmentation"])
    for i, (class_logits, masks) in enumerate(stages):
        prefix = "train/" if i == len(stages) - 1 else f"train/aux{i}_"
        close(class_logits, file[f"{prefix}pred_logits_f64"])
        if i < len(stages) - 1:
            close(masks, file[f"{prefix}pred_masks_f64"])
    large = dense.segvit.resized_masks(stages[-1][1], shape)
    (step,) = map(int, in_names(file, r"train/pred_masks_every(\d+)_f64"))
    close(large[:, :, ::step, ::step], file[f"train/pred_masks_every{step}_f64"])
    expected = {key: float(file[f"loss/loss_{key}_f64"]) for key in in_names(file, r"loss/loss_(.+)_f64")}
    assert len(expected) == len(losses)
    for key, value in losses.items():
        part, _, stage = key.partition("_")
        close(value, expected[PARTS[part] + (f"_{stage}" if stage else "")])
    close(total, file["loss/total_f64"])


@pytest.mark.slow
@pytest.mark.parametrize("name", golden_names("dynamic/segvit*"))
def test_gradients(name):
    file, loss, parts, maps = loss_of(name)
    gradient = jax.grad(lambda *inputs: loss(*inputs)[0], argnums=(0, 1))
    grads, of_maps = jax.jit(gradient, compiler_options=quick_compile())(parts.params, maps)
    named = to_published(merge(parts.graph, grads, parts.rest))
    for key in in_names(file, r"grad/(?!feature)(.+)_f64"):
        value = file[f"grad/{key}_f64"]
        np.testing.assert_allclose(named[f"decode_head.{key}"], value, atol=1e-3 * np.abs(value).max(), rtol=0)
    for i, grad in enumerate(of_maps):
        value = channels_last(file[f"grad/feature{i}_f64"])
        np.testing.assert_allclose(grad, value, atol=1e-3 * np.abs(value).max(), rtol=0)


def test_a_head_leaves_its_host_as_it_was():
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 3, "num_heads": 2}
    host = models.create("vit", **sizes, num_classes=3, kernel_init=nnx.initializers.normal(0.5), rngs=nnx.Rngs(0))
    images = jnp.asarray(np.random.default_rng(0).normal(size=(1, 16, 16, 3)), jnp.float32)
    first = dense.create("linear", encoder=host, num_classes=2, rngs=nnx.Rngs(0))
    before = host(images)[0], first(images)
    second = dense.create("segvit", encoder=host, num_classes=2, features=8, head_heads=2, rngs=nnx.Rngs(0))
    assert second.encoder.norm is None and host.norm is not None
    third = dense.create("dtop", encoder=second.encoder, num_classes=2, features=8, head_heads=2, rngs=nnx.Rngs(0))
    assert third.encoder.blocks[2].has_absent and not second.encoder.blocks[2].has_absent
    np.testing.assert_array_equal(host(images)[0], before[0])
    np.testing.assert_array_equal(first(images), before[1])


def test_pixels_without_a_class_may_have_another_number():
    rng = np.random.default_rng(0)
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 3, "num_heads": 2}
    sizes |= {"features": 8, "head_heads": 2}
    network = dense.create("segvit", encoder="vit", num_classes=3, **sizes, rngs=nnx.Rngs(0))
    images = jnp.asarray(rng.normal(size=(1, 16, 16, 3)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 2, (1, 16, 16)), jnp.int32)
    of_255, _ = network.loss(images, jnp.where(labels == 0, 255, labels))
    of_0, _ = network.loss(images, labels, ignored=0)
    np.testing.assert_array_equal(of_0, of_255)
    assert float(of_0) != float(network.loss(images, labels)[0])
    with pytest.raises(UserError, match="the masks of SegViT and DToP cover all pixels"):
        network.loss(images, labels, valid_only=True)


@pytest.mark.parametrize("name", slow_but(["segvit"], ["segvit", "dtop"]))
def test_decoders_drop_values_in_training_if_there_is_a_key(name):
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 3, "num_heads": 2}
    sizes |= {"features": 8, "head_heads": 2, "layers": 1}
    make = lambda **rate: dense.create(name, encoder="vit", num_classes=3, **sizes, **rate, rngs=nnx.Rngs(0))
    maps = [jax.random.normal(jax.random.key(i), (1, 2, 2, 8)) for i in range(3)]
    logits = jax.jit(
        lambda network, key, train: jax.tree.leaves(network.head_logits(maps, train=train, key=key))[:2],
        static_argnums=2,
    )
    network, key = make(), jax.random.key(0)
    whole = logits(network, None, False)
    for same in (logits(network, key, False), logits(network, None, True), logits(make(dropout=0.0), key, True)):
        chex.assert_trees_all_equal(same, whole)
    first, second = (logits(network, jax.random.key(seed), True) for seed in (0, 1))
    assert not np.allclose(first[0], whole[0]) and not np.allclose(first[0], second[0])


def test_dropout_keeps_the_mean():
    x = jnp.ones((100, 100))
    dropped = np.asarray(apply_dropout(x, 0.1, jax.random.key(0)))
    assert set(np.unique(dropped)) == {0, np.float32(1 / 0.9)}
    np.testing.assert_allclose((dropped == 0).mean(), 0.1, atol=0.01)
