"""Towers of 2025 and 2026: Pixio's CLS tokens, ViT-5's registers, Qwen's tower, and NaFlexViT's positions."""

import ast

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, nhwc, quickly, weights

from jaxprune import checkpoints, models
from jaxprune.errors import UserError
from jaxprune.nn.params import unfilled, variables
from jaxprune.ops.posembed import Resampling, resample
from jaxprune.weights.architecture import architecture
from jaxprune.weights.read_names import to_timm
from jaxprune.weights.rules import to_published
from jaxprune.weights.write_names import spelled

TINY = {"embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 48}


def built(file):
    options = ast.literal_eval(str(file["options"]))
    return unfilled(lambda: models.create(str(file["name"]), **options, rngs=nnx.Rngs(0)))


def test_vit5_matches_its_published_definition():
    file = golden("models/vit5")
    model = checkpoints.load_pretrained(built(file), weights(file))
    found = quickly(model, lambda model, images: (model(images)[0], model.forward_features(images)[0].x))
    logits, features = found(jnp.asarray(nhwc(file["images"])))
    chex.assert_trees_all_close(np.float64(features), file["features"], atol=1e-4, rtol=0)
    chex.assert_trees_all_close(np.float64(logits), file["logits"], atol=1e-4, rtol=0)
    names = {name for name in weights(file) if not name.endswith(".freqs")}
    assert to_published(model).keys() == names


def test_norms_of_timm_are_arguments():
    arguments = {"pre_norm": True, "final_norm": False, "qk_norm": True}
    model = models.create("vit_tiny_patch16_224", **TINY, **arguments, rngs=nnx.Rngs(0))
    assert model.norm_pre is not None and model.norm is None and model.blocks[1].attn.q_norm is not None
    assert model.patch_embed.proj.bias is None  # as in timm
    clip = models.create("vit_base_patch16_clip_224", **TINY, pre_norm=False, rngs=nnx.Rngs(0))
    assert clip.norm_pre is None and clip.norm is not None


def test_registers_with_places_make_a_square():
    model = models.create("vit5_small", **TINY, reg_tokens=3, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="3 register tokens with rotary positions make no square grid"):
        model(jnp.zeros((1, 48, 48, 3)))


@pytest.mark.parametrize(
    "arguments", [{"class_token": False, "global_pool": "avg"}, {"num_cls_tokens": 2}, {"dist_token": True}]
)
def test_registers_with_places_follow_one_cls_token(arguments):
    with pytest.raises(UserError, match="has places for registers after one CLS token: set class_token=True"):
        models.create("vit5_small", **TINY, **arguments, rngs=nnx.Rngs(0))


def test_several_cls_tokens_are_pooled_by_their_mean():
    model = models.create("pixio_vitb16", **TINY, rngs=nnx.Rngs(0))
    pooled, aux = model(jnp.ones((1, 48, 48, 3)))
    assert model.num_prefix_tokens == 8
    chex.assert_trees_all_close(pooled, aux.tokens.x[:, :8].mean(1), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_cls_tokens": 0}, r"num_cls_tokens=0 is below 1: use class_token=False"),
        ({"num_cls_tokens": 2, "class_token": False, "global_pool": "avg"}, "needs class_token=True"),
        ({"num_cls_tokens": 2, "dist_token": True}, "no dist_token"),
        ({"num_cls_tokens": 2, "style": "beit"}, "relative positions for one CLS token"),
    ],
)
def test_wrong_numbers_of_cls_tokens(arguments, message):
    with pytest.raises(UserError, match=message):
        models.create("vit", **TINY, **arguments, rngs=nnx.Rngs(0))


def test_a_file_of_several_cls_tokens_shows_their_number_and_has_the_names_of_published_files():
    model = models.create("pixio_vitb16", **TINY, num_classes=0, rngs=nnx.Rngs(0))
    kind, arguments = architecture(to_timm(to_published(model)), "a file")
    assert kind == "model" and arguments["num_cls_tokens"] == 8 and arguments["img_size"] == (48, 48)
    names = spelled(model, "hugging_face").keys()
    parts = ("norm1", "mlp.fc1", "attention.attention.query", "attention.output.dense")
    assert {f"encoder.layer.0.{part}.weight" for part in parts} <= names
    assert {"embeddings.cls_token", "layernorm.weight"} <= names and "embeddings.mask_token" not in names


def qwen_names(tensors, frames):
    """Timm's tensors by the names of transformers, in a file with a projector and a language model."""
    found = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("encoder.")
        if name == "patch_embed.proj.weight" and frames:
            tensor = np.stack([tensor * 0.25, tensor * 0.75], axis=2)
        elif name == "pos_embed":
            name, tensor = "pos_embed.weight", tensor[0]
        found[f"model.visual.{name.replace('mlp.fc', 'mlp.linear_fc')}"] = tensor
    found |= {f"model.visual.merger.linear_fc1.{kind}": np.ones(3, np.float32) for kind in ("weight", "bias")}
    found["model.visual.deepstack_merger_list.0.norm.weight"] = np.ones(3, np.float32)
    return found | {"model.language_model.layers.0.mlp.up_proj.weight": np.ones((2, 2), np.float32)}


def test_a_file_of_transformers_qwen_is_timms():
    file = golden("hosts/qwen3")
    tensors = {name: tensor for name, tensor in weights(file).items() if not name.startswith("head.")}
    options = ast.literal_eval(str(file["options"])) | {"num_classes": 0}
    make = lambda: unfilled(lambda: models.create(str(file["name"]), **options, rngs=nnx.Rngs(0)))
    expected = variables(checkpoints.load_pretrained(make(), tensors))
    found = variables(checkpoints.load_pretrained(make(), qwen_names(tensors, frames=True)))
    assert found.keys() == expected.keys()
    for name, variable in expected.items():
        np.testing.assert_allclose(found[name][...], variable[...], atol=1e-6, err_msg=name)


def test_a_table_that_keeps_its_aspect_is_the_corner_of_a_square():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(1, 9, 4)), jnp.float32)
    rule = Resampling("bilinear", antialias=False, keeps_aspect=True)
    square = resample(table, (3, 3), (5, 5), 0, **rule._asdict()).reshape(5, 5, 4)
    for grid in ((5, 2), (2, 5)):
        found = resample(table, (3, 3), grid, 0, **rule._asdict()).reshape(*grid, 4)
        chex.assert_trees_all_close(found, square[: grid[0], : grid[1]], atol=1e-6)


def test_aligned_corners_keep_the_corners():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(1, 9, 4)), jnp.float32)
    rule = Resampling("bilinear", antialias=False, align_corners=True)
    found = resample(table, (3, 3), (5, 7), 0, **rule._asdict()).reshape(5, 7, 4)
    before = table.reshape(3, 3, 4)
    chex.assert_trees_all_close(found[::4, ::6], before[::2, ::2], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("naflexvit_base_patch16_parfac_gap", "separate positions of rows and columns"),
        ("qwen3_vit_88m_enc.qwen3_5_0_8b", "a projector for a language model"),
        ("gemma4_vit_167m", "norms before and after each branch"),
        ("deepseek_vit_412m", "an MLP without biases"),
    ],
)
def test_towers_that_are_not_plain_say_what_they_have(name, feature):
    with pytest.raises(UserError, match=f"{name} is not supported: it has {feature}"):
        models.create(name, rngs=nnx.Rngs(0))
