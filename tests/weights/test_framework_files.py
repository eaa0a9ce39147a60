"""Files of pre-training frameworks where a network is wanted: for a probe, for features, for nearest neighbours."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import slow_but

from jaxprune import checkpoints, mim, models
from jaxprune.nn.host import at_path
from jaxprune.nn.params import variables
from jaxprune.open import File, at, initialise, open_network
from jaxprune.preprocessing import HALF, IMAGENET_MEAN

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2}
BEIT = {"style": "beit", "init_values": 0.1, "qkv_bias": "qv", "pos_embed": "none"}
SWIN = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2), "window_size": 3}
DECODER = {"decoder_embed_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2}
# Of each framework its arguments, and the network that reads its encoder.
FILES = {
    "mae": ({**VIT, **DECODER}, {"name": "vit", **VIT, "pos_embed": "sincos"}),
    "mff": ({**VIT, **DECODER}, {"name": "vit", **VIT, "pos_embed": "sincos"}),
    "crossmae": ({**VIT, **DECODER}, {"name": "vit", **VIT, "pos_embed": "sincos"}),
    "localmim": ({**VIT, **DECODER}, {"name": "vit", **VIT, "pos_embed": "sincos"}),
    "tec": ({**VIT, **DECODER, "num_queries": 3}, {"name": "vit", **VIT, "pos_embed": "sincos"}),
    "distil": (VIT, {"name": "vit", **VIT}),
    "simmim": ({**VIT, "mask_patch": 8}, {"name": "vit", **VIT, **BEIT}),
    "localmim_swin": ({**SWIN, **DECODER}, {"name": "swin", **SWIN, "norm_eps": 1e-6}),
    "greenmim": ({**SWIN, **DECODER}, {"name": "swin", **SWIN, "norm_eps": 1e-6}),
}


@pytest.fixture
def saved(tmp_path):
    """Makes a file of a framework, of which no two parameters are alike."""

    def make(name):
        model = mim.create(name, **FILES[name][0], rngs=nnx.Rngs(0))
        random = np.random.default_rng(0)
        for variable in variables(model).values():
            if isinstance(variable, nnx.Param):
                noise = 0.1 * random.normal(size=variable.shape).astype(np.float32)
                variable[...] = jnp.asarray(np.asarray(variable[...]) + noise)
        checkpoints.save_pretrained(model, tmp_path / f"{name}.safetensors")
        return model, tmp_path / f"{name}.safetensors"

    return make


def check(network, model):
    """A network has the weights of what fine-tuning of a framework begins with, to the last bit or so."""
    encoder, found = model.backbone(), variables(network)
    assert {"norm.scale", "patch_embed.proj.kernel"} <= found.keys()
    for name, variable in found.items():
        if not name.startswith("head."):
            # Blocks that share a table of relative positions have one each here.
            np.testing.assert_allclose(variable[...], at_path(encoder, name)[...], atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["mff"], FILES))
def test_its_encoder_is_opened_for_its_features(name, saved, monkeypatch):
    model, path = saved(name)
    sizes = dict(FILES[name][1])
    kind = sizes.pop("name")
    monkeypatch.setattr(f"jaxprune.models.{kind}.variants", lambda: {kind: {}, f"{kind}_ours": sizes})
    opened = open_network(File(path, f"{kind}_ours"))
    assert opened.num_classes == 0
    check(opened, model)


@pytest.mark.parametrize(("tag", "mean"), [("", IMAGENET_MEAN), (".augreg_in21k", HALF)])
def test_it_reads_pixels_as_pre_training_does_unless_a_tag_says_how(tag, mean, saved, monkeypatch):
    """The published names without a tag are those of networks with another normalisation."""
    _, path = saved("mae")
    sizes = {key: value for key, value in FILES["mae"][1].items() if key != "name"}
    name = f"vit_tiny_patch16_224{tag}"
    monkeypatch.setattr("jaxprune.models.vit.variants", lambda: {"vit": {}, "vit_tiny_patch16_224": sizes, name: sizes})
    assert open_network(File(path, name)).preprocessing.mean == mean


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_linear_probe_begins_with_its_encoder_and_norm(name, saved):
    model, path = saved(name)
    pool = {} if FILES[name][1]["name"] == "swin" else {"global_pool": "token"}
    classifier = models.create(**FILES[name][1], **pool, num_classes=3, rngs=nnx.Rngs(1))
    initialise(classifier, at(path))
    check(classifier, model)
