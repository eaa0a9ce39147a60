"""Weights go out under the names of every source that is read, and come back to the bit."""

import json

import numpy as np
import pytest
import test_read_names
import test_sources
from flax import nnx
from safetensors.numpy import load_file
from support import GOLDEN

from jaxprune import models
from jaxprune.checkpoints import load_pretrained, save_pretrained
from jaxprune.errors import UserError
from jaxprune.nn.params import variables
from jaxprune.tools import convert as convert_tool
from jaxprune.weights.rules import to_published
from jaxprune.weights.write_names import NAMES, spelled

# What a file has besides the tensors that the image network computes with: their values are not those of the test.
BESIDES = ("mask_token", "embeddings.mask_token", "rope_embed.periods")

# By names: (the network, how the other test writes it by hand, what that leaves out, patterns of what is not written).
BY_HAND = {
    "openai_clip": ("clip", test_sources.openai, (), "visual."),
    "dinov2": ("dinov2_giant", test_sources.dinov2, ("head.weight", "head.bias"), ""),
    "dinov3": ("dinov3_plus", test_sources.dinov3, ("head.weight", "head.bias"), ""),
    "aimv2": ("aimv2", test_sources.aimv2, ("head.weight", "head.bias"), ""),
    "eva02": ("eva02_clip", test_sources.eva02, (), ""),
    "big_vision": ("siglip", test_sources.siglip, (), "params/img/"),
}


def same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        if name not in BESIDES and not name.endswith("bias_mask"):
            np.testing.assert_array_equal(found[name], tensor, err_msg=name)


@pytest.mark.parametrize("names", [pytest.param(n, marks=() if n == "dinov3" else pytest.mark.slow) for n in BY_HAND])
def test_names_of_a_repository(names):
    case, by_hand, without, tower = BY_HAND[names]
    model, tensors = test_sources.build(case)
    if names == "openai_clip":
        tensors["head.bias"] = np.zeros_like(tensors["head.bias"])
    load_pretrained(model, tensors)
    expected = by_hand({name: tensor for name, tensor in tensors.items() if name not in without})
    expected = {name: t for name, t in expected.items() if name.startswith(tower) and "freqs" not in name}
    if without:
        with pytest.raises(UserError, match=r"has no name for head\.bias, head\.weight: write"):
            spelled(model, names)
        model.head = nnx.data(None)
    same(spelled(model, names), expected)


@pytest.mark.slow
def test_names_of_augreg(tmp_path):
    options = {"img_size": 48, "patch_size": 16, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
    make = lambda seed: models.create("vit_tiny_patch16_224", **options, rngs=nnx.Rngs(seed))
    model, path = make(0), tmp_path / "augreg.npz"
    save_pretrained(model, path, names="big_vision")
    expected = test_sources.big_vision(to_published(model), augreg=True)
    expected.pop("pre_logits/kernel")
    same(dict(np.load(path)), expected)
    for name, variable in variables(load_pretrained(make(1), path)).items():
        np.testing.assert_array_equal(np.asarray(variable[...]), np.asarray(variables(model)[name][...]), err_msg=name)


BY_TABLE = {
    "convnext": ("convnextv2", {"stem.1.bias": "downsample_layers.0.1.bias", "head.fc.weight": "head.weight"}),
    "swin": (
        "swin",
        {"layers.1.downsample.norm.bias": "layers.0.downsample.norm.bias", "head.fc.weight": "head.weight"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("names", BY_TABLE)
def test_names_of_a_repository_with_stages(names):
    case, some = BY_TABLE[names]
    model, tensors = test_sources.build(case)
    load_pretrained(model, tensors)
    found = spelled(model, names)
    assert len(found) == len(tensors)
    for timm, theirs in some.items():
        np.testing.assert_array_equal(found[theirs], tensors[timm])
    if names == "convnext":
        width = test_sources.options_of(case)["dims"][1]
        assert found["stages.1.0.grn.gamma"].shape == (1, 1, 1, 4 * width)


@pytest.mark.slow
def test_names_of_efficientnet_lite():
    model = models.create("efficientnet_lite0", rngs=nnx.Rngs(0))
    found = spelled(model, "efficientnet_lite")
    published = to_published(model)
    np.testing.assert_array_equal(found["_blocks.1._expand_conv.weight"], published["blocks.1.0.conv_pw.weight"])
    np.testing.assert_array_equal(found["_blocks.0._project_conv.weight"], published["blocks.0.0.conv_pw.weight"])
    np.testing.assert_array_equal(found["_fc.bias"], published["classifier.bias"])


FILES = json.loads((GOLDEN / "hosts/hf_names.json").read_text())
QUICK = ("hf_dinov3_plus", "hf_siglip")


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in FILES if c not in test_read_names.FAMILIES],
)
def test_names_of_hugging_face(case):
    model, tensors = test_sources.build(case)
    load_pretrained(model, tensors)
    found = spelled(model, "hugging_face")
    # Its files of whole models, which all its versions read, have the name of the tower in front.
    tower = "vision_model." if case == "hf_siglip" else ""
    expected = {f"{tower}{name}" for name in FILES[case]}
    assert set(found) == expected
    # The same values as in its memory, under the names that are the same; a first token may hold its position.
    moved = {"embeddings.cls_token", "embeddings.position_embeddings"} if case == "hf_dinov2_registers" else set()
    for name in set(found) & set(tensors) - set(BESIDES) - moved:
        np.testing.assert_array_equal(found[name], tensors[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["hf_deit", "hf_vitmae"])
def test_names_of_hugging_face_that_are_written_by_hand(family):
    build, arguments, by_hand = test_read_names.FAMILIES[family]
    model = build(**arguments)
    expected = by_hand(test_read_names.arrays(model))
    same(spelled(model, "hugging_face"), expected)
    plain = lambda names: {
        name.replace("decoder_encoder.layer", "decoder_layers").replace("layer.1.", "layer.0.") for name in names
    }
    assert plain(expected) == plain(FILES[family])


def test_what_has_no_such_names():
    def vit(name="vit", **options):
        return models.create(name, **test_read_names.SIZES, depth=1, rngs=nnx.Rngs(0), **options)

    pooled = vit(num_classes=3, global_pool="avg")
    with pytest.raises(UserError, match=r"Hugging Face's ViT has no name for fc_norm\.bias, fc_norm\.weight"):
        spelled(pooled, "hugging_face")
    with pytest.raises(UserError, match=r"no names for a vision transformer with these rotary positions"):
        spelled(vit("vit_small_patch16_rope_224", num_classes=0), "hugging_face")
    with pytest.raises(UserError, match=r"0 rows before those of the patches"):
        spelled(vit("deit3_small_patch16_224", num_classes=0), "dinov2")
    with pytest.raises(UserError, match=r"not one of EVA-02's networks: write the weights under timm's names"):
        spelled(pooled, "eva02")
    with pytest.raises(UserError, match=r"networks end with a norm"):
        spelled(vit("vit_intern300m_patch14_448", num_classes=0), "hugging_face")
    with pytest.raises(UserError, match=r"There are no names 'hugingface'.*hugging_face|hugging_face"):
        spelled(pooled, "hugingface")


def test_the_command_writes_them(tmp_path, monkeypatch, capsys):
    model = models.create("vit", **test_read_names.SIZES, depth=1, num_classes=3, rngs=nnx.Rngs(0))
    first, second = tmp_path / "timm.safetensors", tmp_path / "hf.safetensors"
    save_pretrained(model, first)
    monkeypatch.setattr("sys.argv", ["convert", f"--input={first}", f"--output={second}", "--names=hugging_face"])
    convert_tool.main()
    assert "the weights of a VisionTransformer" in capsys.readouterr().out
    same(load_file(second), spelled(model, "hugging_face"))
    monkeypatch.setattr("sys.argv", ["convert", f"--input={first}", f"--output={second}", "--names=big_vision"])
    with pytest.raises(SystemExit):
        convert_tool.main()
    assert "would not be a .npz" in capsys.readouterr().err
    assert set(BY_HAND) | set(BY_TABLE) | {"timm", "hugging_face", "efficientnet_lite"} == set(NAMES)
