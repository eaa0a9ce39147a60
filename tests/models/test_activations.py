"""timm's `act_layer`: what it computes, where it is kept, and what has none; the activation of transformers' SigLIP."""

import ast

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file
from support import golden, nhwc, quickly, slow_but, weights

from jaxprune import checkpoints, mim, models
from jaxprune.checkpoints.run_card import Card
from jaxprune.errors import UserError
from jaxprune.models.vit import VisionTransformer
from jaxprune.models.vit_styles import STYLES
from jaxprune.nn.params import unfilled
from jaxprune.weights.open_published import open_published

ERF, TANH = "vit_base_patch16_siglip_224", "vit_so400m_patch16_siglip_256"
TINY = {"embed_dim": 16, "depth": 1, "num_heads": 2, "img_size": 32, "num_classes": 3}


def built(name, **arguments):
    return models.create(name, **TINY, **arguments, rngs=nnx.Rngs(0))


def of(file, name, **arguments):
    options = {"mlp_ratio": 3.7362, **ast.literal_eval(str(file["options"])), **arguments}
    return unfilled(lambda: models.create(name, **options, rngs=nnx.Rngs(0)))


def activations(model):
    return {model.attn_pool.mlp.activation, *(block.mlp.activation for block in model.blocks)}


def outputs(model, file):
    return np.float64(quickly(model, lambda model, images: model(images)[0])(jnp.asarray(nhwc(file["images"]))))


def test_tanh_gelu_by_name_is_timms():
    file = golden("hosts/siglip_tanh")
    model = checkpoints.load_pretrained(of(file, ERF, act_layer="gelu_tanh"), weights(file))
    chex.assert_trees_all_close(outputs(model, file), file["logits"], atol=1e-4, rtol=0)


PLAIN = [style for style in STYLES if STYLES[style].block.mlp == "plain"]


@pytest.mark.parametrize("style", slow_but(PLAIN[::2], PLAIN))
def test_every_plain_mlp_takes_another_activation(style):
    model = nnx.eval_shape(lambda: VisionTransformer(style=style, **TINY, act_layer="silu", rngs=nnx.Rngs(0)))
    assert {block.mlp.activation for block in model.blocks} == {"silu"}
    assert STYLES[style].block.activation != "silu"


@pytest.mark.parametrize("activation", ["gelu", "gelu_erf", "gelu_tanh", "quick_gelu"])
def test_activation_of_blocks_and_pooling(activation):
    assert (
        activations(built(ERF, act_layer=activation)) == activations(built(TANH, act_layer=activation)) == {activation}
    )


def test_activation_is_that_of_the_name_by_default():
    assert activations(built(ERF)) == activations(built(ERF, act_layer=None)) == {"gelu"}
    assert activations(built(TANH)) == {"gelu_tanh"}


@pytest.mark.slow
def test_activation_is_on_the_card_and_comes_back(tmp_path):
    model = built(ERF, act_layer="gelu_tanh")
    assert Card.of(model).arguments["act_layer"] == "gelu_tanh"
    checkpoints.save_model(model, tmp_path / "tanh.safetensors")
    again = checkpoints.load_model(tmp_path / "tanh.safetensors")
    images = jnp.linspace(-1, 1, 32 * 32 * 3).reshape(1, 32, 32, 3)
    assert activations(again) == {"gelu_tanh"}
    chex.assert_trees_all_equal(again(images)[0], model(images)[0])


def test_encoder_of_a_framework_takes_an_activation():
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
    decoder = {"decoder_embed_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2}
    framework = nnx.eval_shape(lambda: mim.create("mae", **sizes, **decoder, act_layer="quick_gelu", rngs=nnx.Rngs(0)))
    assert framework.encoder.blocks[0].mlp.activation == "quick_gelu"


@pytest.mark.parametrize(
    ("name", "activation", "message"),
    [
        (
            ERF,
            "gelu_pytorch_tanh",
            r"Unknown act_layer 'gelu_pytorch_tanh'.* gelu, gelu_erf, gelu_tanh, quick_gelu, silu",
        ),
        (ERF, 3, "act_layer=3 is not a text or None"),
        ("vit_small_plus_patch16_dinov3", "gelu", "act_layer='gelu' has no place in a network with SwiGLU"),
        ("aimv2_large_patch14_224", "silu", "leave act_layer out"),
        ("convnext_small", "gelu", "ConvNeXt has no argument 'act_layer'"),
        ("resnet18", "gelu", "has no argument 'act_layer'"),
    ],
)
def test_other_activations_and_networks_without_one_are_refused(name, activation, message):
    with pytest.raises(UserError, match=message):
        models.create(name, act_layer=activation, rngs=nnx.Rngs(0))


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "warnings"), [({}, 1), ({"act_layer": "gelu_tanh"}, 0)])
def test_transformers_siglip_warns_of_another_activation(arguments, warnings, caplog):
    file = golden("hosts/hf_siglip")
    model = checkpoints.load_pretrained(of(file, ERF, **arguments, num_classes=0), weights(file))
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == warnings and all('act_layer="gelu_tanh"' in line and "\n" not in line for line in lines)
    difference = np.abs(outputs(model, file) - file["pooled"]).max()
    assert difference > 5e-4 if warnings else difference < 5e-5


@pytest.mark.parametrize("case", ["siglip_gap", "hf_clip", "hf_aimv2", "siglip"])
def test_other_sources_do_not_warn(case, caplog):
    file = golden(f"hosts/{case}")
    options = ast.literal_eval(str(file["options"]))
    model = unfilled(lambda: models.create(str(file["name"]), **options, rngs=nnx.Rngs(0)))
    checkpoints.load_pretrained(model, weights(file))
    assert "act_layer" not in caplog.text


def test_transformers_siglip_is_opened_with_its_activation(tmp_path, caplog, monkeypatch):
    file = golden("hosts/hf_siglip")
    options = {"mlp_ratio": 4.0, **ast.literal_eval(str(file["options"]))}
    create = models.create
    monkeypatch.setattr(models, "create", lambda name, **further: create(name, **{**options, **further}))
    save_file(
        {f"vision_model.{name}": tensor for name, tensor in weights(file).items()}, tmp_path / "siglip.safetensors"
    )
    model = open_published(tmp_path / "siglip.safetensors", ERF)
    assert caplog.text.count("act_layer") == 1 and 'act_layer="gelu_tanh"' in caplog.text
    assert model.recipe.as_dict()["act_layer"] == "gelu_tanh"
    chex.assert_trees_all_close(outputs(model, file), file["pooled"], atol=1e-4, rtol=0)
