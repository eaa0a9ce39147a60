"""The ViT against timm's numbers, and its shapes in every form."""

import contextlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import assert_gradients, golden, golden_names, nhwc, weights

from jaxprune import checkpoints, mim, models, ranking
from jaxprune.errors import UserError
from jaxprune.nn.images import as_input
from jaxprune.nn.params import merge, split
from jaxprune.preprocessing import Preprocessing
from jaxprune.train.optimizer import decay_mask


def published(name: str, **arguments):
    file = golden(name)
    sizes = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "num_classes")
    arguments |= dict(zip(sizes, file["cfg"].tolist(), strict=True))
    arguments["mlp_ratio"] = float(file.get("mlp_ratio", 4.0))
    model = models.create("vit", **arguments, rngs=nnx.Rngs(0))
    return file, checkpoints.load_pretrained(model, weights(file))


@pytest.mark.parametrize("name", golden_names("mim/timm_vit_*"))
def test_matches_timm_forward_and_gradients(name):
    file, model = published(name, global_pool="avg" if name.endswith("gap") else "token")
    images = jnp.asarray(nhwc(file["imgs"]))
    parts = split(model)

    def loss_fn(params):
        logits, aux = merge(parts.graph, params, parts.rest)(images)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(file["labels"])[:, None], axis=1)
        return -chosen.mean(), (logits, aux.tokens.x)

    (ce, (logits, features)), grads = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(parts.params)
    chex.assert_trees_all_close(features, file["features"], atol=2e-5, rtol=0)
    chex.assert_trees_all_close(logits, file["logits"], atol=2e-5, rtol=0)
    chex.assert_trees_all_close(ce, file["ce"], rtol=1e-5)
    assert_gradients(parts, grads, file, "grad/")


def test_matches_distilled_deit():
    file, model = published("mim/deit_distilled", dist_token=True)
    logits, aux = model(jnp.asarray(nhwc(file["imgs"])))
    chex.assert_trees_all_close(aux.tokens.x, file["features"], atol=2e-5, rtol=0)
    chex.assert_trees_all_close(aux.head_logits, (file["logits_cls"], file["logits_dist"]), atol=2e-5, rtol=0)
    chex.assert_trees_all_close(logits, file["logits_eval"], atol=2e-5, rtol=0)


def test_distilled_deit_without_classes_pools_both_tokens():
    file = golden("mim/deit_distilled")
    sizes = dict(zip(("img_size", "patch_size", "embed_dim", "depth", "num_heads"), file["cfg"].tolist(), strict=False))
    sizes["mlp_ratio"] = float(file.get("mlp_ratio", 4.0))
    model = models.create("deit_tiny_distilled_patch16_224", **sizes, num_classes=0, rngs=nnx.Rngs(0))
    checkpoints.load_pretrained(model, weights(file), ignored=("head.*", "head_dist.*"))
    pooled, aux = model(jnp.asarray(nhwc(file["imgs"])))
    chex.assert_trees_all_close(pooled, file["features"][:, :2].mean(1), atol=2e-5, rtol=0)
    chex.assert_trees_all_equal(model.pool(aux.tokens), pooled)


TINY = {"embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}


@pytest.mark.parametrize(
    ("arguments", "prefix"),
    [
        ({"img_size": (32, 48), "patch_size": 8}, 1),
        ({"img_size": 32, "patch_size": (8, 16), "dist_token": True}, 2),
        ({"img_size": 32, "patch_size": 8, "reg_tokens": 4, "no_embed_class": True}, 5),
        ({"img_size": 32, "patch_size": 8, "class_token": False, "global_pool": "avg"}, 0),
        ({"img_size": 32, "patch_size": 8, "init_values": 0.1, "qkv_bias": False, "remat": True}, 1),
    ],
)
def test_every_form_has_the_shapes_it_promises(arguments, prefix):
    model = models.create("vit", **TINY, **arguments, rngs=nnx.Rngs(0))
    height, width = model.patch_embed.img_size
    logits, aux = jax.jit(lambda images: model(images))(jnp.zeros((2, height, width, 3)))
    chex.assert_shape(logits, (2, 3))
    assert model.num_prefix_tokens == prefix
    chex.assert_shape(aux.features, (2, prefix + model.num_patches, 16))
    chex.assert_shape(aux.tokens.assign, (2, model.num_patches))


@pytest.mark.slow
def test_drop_path_is_random_in_training_only(rng_key):
    model = models.create("vit", **TINY, img_size=16, patch_size=8, drop_path_rate=0.5, rngs=nnx.Rngs(0))
    images = jnp.ones((8, 16, 16, 3))
    chex.assert_trees_all_equal(model(images)[0], model(images, key=rng_key)[0])
    train, other = (model(images, train=True, key=jax.random.key(i))[0] for i in range(2))
    assert not np.allclose(train, other)
    # At rate r a branch survives 1 - r of the time, scaled by 1 / (1 - r): the mean is the branch.
    branch = model.blocks[1].drop_path(jnp.ones((4000, 1, 1)), rng_key)
    assert float(branch.mean()) == pytest.approx(1.0, abs=0.05)


def test_drop_path_without_a_key_is_refused_in_training():
    images = jax.ShapeDtypeStruct((1, 16, 16, 3), jnp.float32)
    for rate in (0.0, 0.5):
        model = models.create("vit", **TINY, img_size=16, patch_size=8, drop_path_rate=rate, rngs=nnx.Rngs(0))
        jax.eval_shape(model, images)
        refused = pytest.raises(UserError, match="needs a key: pass key=") if rate else contextlib.nullcontext()
        with refused:
            jax.eval_shape(lambda images, model=model: model(images, train=True), images)


@pytest.mark.slow
def test_bfloat16_stays_close_and_keeps_float32_logits():
    full = models.create("vit", **TINY, img_size=16, patch_size=8, rngs=nnx.Rngs(0))
    half = models.create("vit", **TINY, img_size=16, patch_size=8, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(1), (2, 16, 16, 3))
    logits, aux = half(images)
    assert logits.dtype == jnp.float32 and aux.tokens.x.dtype == jnp.bfloat16
    chex.assert_trees_all_close(logits, full(images)[0], atol=0.02)


def test_attention_on_accelerators_is_the_same_function(monkeypatch, rng_key):
    from jaxprune.nn import attention

    q, k, v = jax.random.normal(rng_key, (3, 2, 4, 7, 8))
    bias = jnp.log(jnp.arange(1.0, 8.0))[None, None, None, :].repeat(2, 0)
    ours = [attention.attend(q, k, v, b) for b in (None, bias)]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    chex.assert_trees_all_close(ours, [attention.attend(q, k, v, b) for b in (None, bias)], atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"img_size": 30, "patch_size": 8}, "24x24"),
        ({"img_size": 16, "patch_size": 8, "num_heads": 3}, "not divisible"),
        ({"img_size": 16, "patch_size": 8, "class_token": False}, "global_pool='avg'"),
    ],
)
def test_impossible_sizes_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        models.create("vit", **{**TINY, **arguments}, rngs=nnx.Rngs(0))


def test_wrong_image_size_and_unknown_names_are_refused():
    model = models.create("vit", **TINY, img_size=16, patch_size=8, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="img_size"):
        model(jnp.zeros((1, 24, 24, 3)))
    with pytest.raises(UserError, match="Did you mean 'vit_small_patch16_224'"):
        models.create("vit_smal_patch16_224", rngs=nnx.Rngs(0))


@pytest.mark.slow
def test_named_sizes_have_timms_parameter_counts():
    counts = {"vit_tiny": 5_717_416, "deit_small": 22_050_664, "vit_base": 86_567_656}
    for size, expected in counts.items():
        name = f"{size}_patch16_224"
        model = nnx.eval_shape(lambda name=name: models.create(name, rngs=nnx.Rngs(0)))
        assert sum(v.size for v in jax.tree.leaves(nnx.state(model, nnx.Param))) == expected


@pytest.mark.parametrize(
    ("name", "what"),
    [("vit_dpwee_patch16_reg1_gap_256", "differential"), ("vit_pwee_patch16_reg1_gap_256.sbb_in1k", "side by side")],
)
def test_what_timm_names_and_is_not_built_says_why(name, what):
    with pytest.raises(UserError, match=f"{name} is not supported: it has .*{what}"):
        models.arguments(name)


LEAST = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}


def test_the_distillation_head_reads_its_token_with_or_without_a_cls_token():
    for class_token in (True, False):
        sizes = {**LEAST, "num_classes": 3, "class_token": class_token, "global_pool": "avg"}
        model = models.create("vit", **sizes, dist_token=True, reg_tokens=2, rngs=nnx.Rngs(0))
        model.head_dist.kernel[...] = jax.random.normal(jax.random.key(0), model.head_dist.kernel.shape)
        tokens, _ = model.forward_features(jax.random.normal(jax.random.key(1), (2, 16, 16, 3)))
        _, (_, distilled) = model.forward_head(tokens)
        np.testing.assert_allclose(distilled, model.head_dist(tokens.x[:, int(class_token)]), rtol=1e-6)


def test_without_a_cls_token_features_are_of_all_patches():
    model = models.create("vit", **LEAST, num_classes=0, class_token=False, reg_tokens=2, rngs=nnx.Rngs(0))
    tokens, _ = model.forward_features(jax.random.normal(jax.random.key(1), (2, 16, 16, 3)))
    np.testing.assert_allclose(model.forward_head(tokens)[0], tokens.x[:, 2:].mean(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rate", [1.0, 1.5, -0.5])
def test_a_rate_of_dropped_paths_is_below_one(rate):
    with pytest.raises(UserError, match=rf"drop_path_rate={rate:g} is not a rate"):
        models.create("vit", **{**LEAST, "depth": 2}, drop_path_rate=rate, rngs=nnx.Rngs(0))


def test_numbers_of_numpy_are_sizes():
    model = models.create("vit", **{name: np.int64(value) for name, value in LEAST.items()}, rngs=nnx.Rngs(0))
    assert model.grid == (4, 4) and model.preprocessing.with_size(np.int64(8)).img_size == (8, 8)
    swin = {"img_size": 32, "patch_size": 4, "embed_dim": 8, "depths": (1, 1), "num_heads": np.int64(2)}
    models.create("swin", **swin, window_size=np.int64(4), rngs=nnx.Rngs(0))


def test_pixels_of_other_channels_are_normalised_alike():
    decoder = {"decoder_embed_dim": 8, "decoder_depth": 1, "decoder_num_heads": 1}
    ranker = ranking.create("vit", **LEAST, in_chans=1, rngs=nnx.Rngs(0))
    framework = mim.create("mae", **LEAST, **decoder, in_chans=4, rngs=nnx.Rngs(0))
    assert [len(network.preprocessing.mean) for network in (ranker, framework)] == [1, 4]
    record = models.create("vit", **LEAST, in_chans=1, rngs=nnx.Rngs(0)).preprocessing
    assert len(record.mean) == len(record.std) == 1
    assert as_input(np.zeros((2, 16, 16, 1), np.uint8), record).shape == (2, 16, 16, 1)
    with pytest.raises(UserError, match="Images of 1 channels do not fit a mean and std of 3"):
        as_input(np.zeros((2, 16, 16, 1), np.uint8), Preprocessing((16, 16)))


def test_learnt_rotary_frequencies_do_not_decay_and_shared_relative_positions_learn_at_the_full_rate():
    mixed = models.create("vit", **LEAST, style="rope_mixed", rngs=nnx.Rngs(0))
    params = split(mixed).params
    decays = decay_mask(params, mixed.no_decay)
    assert not decays["blocks.0.rope_freqs"] and decays["blocks.0.mlp.fc1.kernel"]
    shared = models.create("vit", **LEAST, style="beit_shared", rngs=nnx.Rngs(0))
    layers = shared.parameter_layers(split(shared).params)
    assert layers["blocks.0.attn.relative_position_bias_table"] == 2 and layers["blocks.0.mlp.fc1.kernel"] == 1


SWIN = {"img_size": 32, "patch_size": 4, "embed_dim": 8, "depths": (1, 1), "num_heads": 2, "window_size": 4}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit", {"mlp_ratio": 0.0}, "mlp_ratio=0.0 is out of range: use a number above 0"),
        ("vit", {"norm_eps": float("nan")}, "norm_eps=nan is out of range"),
        ("convnext_tiny", {"kernel_sizes": 4}, "kernel_sizes=4: a depth-wise kernel has a centre only if"),
        ("hiera", {"embed_dim": 8, "num_heads": 3}, "not divisible by num_heads=3"),
        ("swin", {**SWIN, "version": 2, "pretrained_window_sizes": (3,)}, r"\(3,\) has 1 stages, but depths=\(1, 1\)"),
        ("swin", {**SWIN, "depths": (1, 0)}, "every stage of a Swin has a block"),
        ("swin", {**SWIN, "depths": 2}, "depths=2 is not several values, each a whole number"),
        ("vitdet", {"global_blocks": 3}, "global_blocks=3 is not several values, each a whole number or None"),
        ("resnet18", {"width": 0}, "width=0 is not a size"),
    ],
)
def test_arguments_that_no_network_has_are_refused(name, options, message):
    arguments = {**(LEAST if name == "vit" else {}), **options}
    with pytest.raises(UserError, match=message):
        models.create(name, **arguments, rngs=nnx.Rngs(0))
