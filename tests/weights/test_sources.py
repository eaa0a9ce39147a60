"""One network under the names of its own repository and under timm's: the same arrays, to the bit."""

import ast
import functools
import re

import numpy as np
import pytest
from flax import nnx
from support import depth_of, golden, weights

from jaxprune import models
from jaxprune.checkpoints import load_pretrained
from jaxprune.errors import UserError
from jaxprune.nn.params import unfilled, variables
from jaxprune.weights.rules import to_published


def options_of(case):
    return ast.literal_eval(str(golden(f"hosts/{case}")["options"]))


def build(case):
    file, options = golden(f"hosts/{case}"), options_of(case)
    return unfilled(lambda: models.create(str(file["name"]), **options, rngs=nnx.Rngs(0))), weights(file)


def renamed(tensors, table):
    """Every name after the substitutions of a table, in their order."""
    found = {}
    for name, tensor in tensors.items():
        for pattern, template in table:
            name = re.sub(pattern, template, name)
        found[name] = tensor
    return found


def openai(tensors, prefix="visual."):
    table = (
        (r"^patch_embed\.proj", "conv1"),
        (r"^pos_embed", "positional_embedding"),
        (r"^cls_token", "class_embedding"),
        (r"^norm_pre", "ln_pre"),
        (r"^norm\.", "ln_post."),
        (r"^blocks", "transformer.resblocks"),
        (r"\.norm([12])", r".ln_\1"),
        (r"gamma_([12])", r"ls_\1.gamma"),
        (r"attn\.qkv\.", "attn.in_proj_"),
        (r"attn\.proj", "attn.out_proj"),
        (r"mlp\.fc1", "mlp.c_fc"),
        (r"mlp\.fc2", "mlp.c_proj"),
        (r"^attn_pool\.latent", "attn_pool.probe"),
        (r"^attn_pool\.proj", "attn_pool.attn.out_proj"),
        (r"^attn_pool\.norm", "attn_pool.layernorm"),
        (r"^head\.weight", "proj"),
    )
    found = renamed({name: t for name, t in tensors.items() if name != "head.bias"}, table)
    found["positional_embedding"] = found["positional_embedding"][0]
    found["proj"] = found["proj"].T
    if "class_embedding" in found:
        found["class_embedding"] = found["class_embedding"][0, 0]
    for kind in ("weight", "bias"):
        if f"attn_pool.q.{kind}" in found:
            parts = [found.pop(f"attn_pool.{part}.{kind}") for part in ("q", "kv")]
            found[f"attn_pool.attn.in_proj_{kind}"] = np.concatenate(parts)
    text = {
        "transformer.resblocks.0.ln_1.weight": np.ones(7),
        "logit_scale": np.ones(()),
        "text_projection": np.ones((7, 5)),
    }
    return {**{prefix + name: tensor for name, tensor in found.items()}, **(text if prefix else {})}


def dinov2(tensors):
    found = renamed(tensors, ((r"mlp\.fc1", "mlp.w12"), (r"mlp\.fc2", "mlp.w3"), (r"^reg_token", "register_tokens")))
    table = found["pos_embed"]
    return {
        **found,
        "pos_embed": np.concatenate([np.zeros_like(table[:, :1]), table], 1),
        "mask_token": np.ones((1, table.shape[2])),
    }


def dinov3(tensors):
    table = (
        (r"^reg_token", "storage_tokens"),
        (r"gamma_([12])", r"ls\1.gamma"),
        (r"fc1_g", "w1"),
        (r"fc1_x", "w2"),
        (r"mlp\.fc2", "mlp.w3"),
    )
    plain = not any("fc1_g" in name for name in tensors)
    found = renamed(tensors, table[:-1] if plain else table)
    width = tensors["cls_token"].shape[2]
    for block in range(depth_of(tensors)):
        place = f"blocks.{block}.attn."
        q, v = (found.pop(f"{place}{letter}_bias", np.zeros(width, np.float32)) for letter in "qv")
        found[f"{place}qkv.bias"] = np.concatenate([q, np.zeros_like(q), v])
        found[f"{place}qkv.bias_mask"] = np.ones(3 * width)
    return {**found, "mask_token": np.ones((1, width)), "rope_embed.periods": np.ones(width // 8)}


def aimv2(tensors):
    table = (
        (r"^patch_embed", "preprocessor.patchifier"),
        (r"^pos_embed", "preprocessor.pos_embed"),
        (r"\.norm([12])", r".norm_\1"),
        (r"^blocks", "trunk.blocks"),
        (r"^norm", "trunk.post_trunk_norm"),
        (r"fc1_g", "fc1"),
        (r"fc1_x", "fc3"),
    )
    return renamed(tensors, table)


def eva02(tensors):
    table = (
        (r"fc1_g", "w1"),
        (r"fc1_x", "w2"),
        (r"mlp\.fc2", "mlp.w3"),
        (r"attn\.norm", "attn.inner_attn_ln"),
        (r"mlp\.norm", "mlp.ffn_ln"),
        (r"([qv])_proj\.bias", r"\1_bias"),
    )
    return {**renamed(tensors, table), "rope.freqs_cos": np.ones((9, 12)), "rope.freqs_sin": np.ones((9, 12))}


def big_vision(tensors, *, augreg=False, stacked=False, heads=2):
    """As `.npz`: kernels are (in, out), attention has axes for heads."""
    numbers = {"second": "LayerNorm_2", "attention": "MultiHeadDotProductAttention_1", "mlp": "MlpBlock_3"}
    if not augreg:
        numbers = {"second": "LayerNorm_1", "attention": "MultiHeadDotProductAttention_0", "mlp": "MlpBlock_0"}
    kernel = lambda tensor: tensor.T

    def projection(tensor):
        return tensor.T.reshape(-1, heads, tensor.shape[0] // heads) if tensor.ndim == 2 else tensor.reshape(heads, -1)

    def attention(place, parts, out):
        found = {}
        for name, tensor in zip(("query", "key", "value"), parts("weight"), strict=True):
            found[f"{place}/{name}/kernel"] = projection(tensor)
        for name, tensor in zip(("query", "key", "value"), parts("bias"), strict=True):
            found[f"{place}/{name}/bias"] = projection(tensor)
        weight = tensors[f"{out}.weight"].T
        return {
            **found,
            f"{place}/out/kernel": weight.reshape(heads, -1, weight.shape[1]),
            f"{place}/out/bias": tensors[f"{out}.bias"],
        }

    def pair(place, name, layer):
        return (
            {f"{place}/kernel": kernel(tensors[f"{name}.weight"]), f"{place}/bias": tensors[f"{name}.bias"]}
            if layer
            else {f"{place}/scale": tensors[f"{name}.weight"], f"{place}/bias": tensors[f"{name}.bias"]}
        )

    blocks = []
    for index in range(depth_of(tensors)):
        name = f"blocks.{index}."
        block = {**pair("LayerNorm_0", f"{name}norm1", False), **pair(numbers["second"], f"{name}norm2", False)}
        block |= {
            **pair(f"{numbers['mlp']}/Dense_0", f"{name}mlp.fc1", True),
            **pair(f"{numbers['mlp']}/Dense_1", f"{name}mlp.fc2", True),
        }
        block |= attention(
            numbers["attention"],
            lambda kind, name=name: np.split(tensors[f"{name}attn.qkv.{kind}"], 3),
            f"{name}attn.proj",
        )
        blocks.append(block)
    found = {
        "embedding/kernel": tensors["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": tensors["patch_embed.proj.bias"],
        ("Transformer/posembed_input/pos_embedding" if augreg else "pos_embedding"): tensors["pos_embed"],
        **pair("Transformer/encoder_norm", "norm", False),
        **pair("head", "head", True),
    }
    if "cls_token" in tensors:
        found["cls"] = tensors["cls_token"]
    if "attn_pool.latent" in tensors:
        place = "MAPHead_0/MultiHeadDotProductAttention_0"
        found |= {
            "MAPHead_0/probe": tensors["attn_pool.latent"],
            **pair("MAPHead_0/LayerNorm_0", "attn_pool.norm", False),
        }
        found |= pair("MAPHead_0/MlpBlock_0/Dense_0", "attn_pool.mlp.fc1", True) | pair(
            "MAPHead_0/MlpBlock_0/Dense_1", "attn_pool.mlp.fc2", True
        )
        parts = lambda kind: [tensors[f"attn_pool.q.{kind}"], *np.split(tensors[f"attn_pool.kv.{kind}"], 2)]
        found |= attention(place, parts, "attn_pool.proj")
    if stacked:
        found |= {f"Transformer/encoderblock/{name}": np.stack([block[name] for block in blocks]) for name in blocks[0]}
    else:
        found |= {
            f"Transformer/encoderblock_{i}/{name}": t for i, block in enumerate(blocks) for name, t in block.items()
        }
    if augreg:
        return {**found, "pre_logits/kernel": np.ones((2, 2))}
    return {
        **{f"params/img/{name}": tensor for name, tensor in found.items()},
        "params/txt/embedding/kernel_": np.ones(3),
        "params/t": np.ones(1),
    }


siglip = functools.partial(big_vision, heads=options_of("siglip")["num_heads"])
CASES = {
    "clip": openai,
    "clip without a prefix": lambda tensors: openai(tensors, ""),
    "pe_core": openai,
    "dinov2_giant": dinov2,
    "dinov3": dinov3,
    "dinov3_qkvb": dinov3,
    "dinov3_plus": dinov3,
    "aimv2": aimv2,
    "eva02_clip": eva02,
    "siglip": siglip,
    "siglip stacked": functools.partial(siglip, stacked=True),
}


SLOW = (
    "siglip",
    "clip without a prefix",
    "dinov3",
    "dinov3_plus",
    "siglip stacked",
    "pe_core",
    "dinov2_giant",
    "eva02_clip",
)


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow if c in SLOW else ()) for c in CASES])
def test_the_names_of_a_repository_stand_for_timms(case):
    model, tensors = build(case.split()[0])
    if CASES[case] is openai or case == "clip without a prefix":
        tensors["head.bias"] = np.zeros_like(tensors["head.bias"])  # CLIP's projection has none
    expected = {name: np.asarray(v[...]) for name, v in variables(load_pretrained(model, tensors)).items()}
    again, _ = build(case.split()[0])
    loaded = variables(load_pretrained(again, CASES[case](tensors)))
    for name, array in expected.items():
        np.testing.assert_array_equal(np.asarray(loaded[name][...]), array, err_msg=name)


def test_the_npz_files_of_augreg(tmp_path):
    options = {"img_size": 48, "patch_size": 16, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
    make = lambda seed: models.create("vit_tiny_patch16_224", **options, rngs=nnx.Rngs(seed))
    first, second = make(0), make(1)
    np.savez(tmp_path / "augreg.npz", **big_vision(to_published(first), augreg=True))
    load_pretrained(second, tmp_path / "augreg.npz")
    for name, variable in variables(first).items():
        np.testing.assert_array_equal(np.asarray(variables(second)[name][...]), np.asarray(variable[...]), err_msg=name)


def test_a_bias_of_keys_is_not_dropped_where_it_is_not_zero():
    model, tensors = build("dinov3_qkvb")
    upstream = dinov3(tensors)
    upstream["blocks.0.attn.qkv.bias"] = np.ones_like(upstream["blocks.0.attn.qkv.bias"])
    with pytest.raises(UserError, match=r"left over .*blocks\.0\.attn\.qkv\.bias"):
        load_pretrained(model, upstream)
