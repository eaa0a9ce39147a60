"""The families of networks against what timm computes: logits, features, intermediates; and their files."""

import ast

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, golden_names, nhwc, quickly, slow_but, weights

from jaxprune import checkpoints, models
from jaxprune.nn.params import unfilled
from jaxprune.weights.rules import to_published

CASES = sorted(name.removeprefix("hosts/") for name in golden_names("hosts/*") if "/hf_" not in name)


def network(name: str):
    file = golden(f"hosts/{name}")
    options = ast.literal_eval(str(file["options"]))
    model = unfilled(lambda: models.create(str(file["name"]), **options, rngs=nnx.Rngs(0)))
    return file, checkpoints.load_pretrained(model, weights(file))


# One of most families; ConvNeXt and Hiera, which take longer to compile, further members and special cases are slow.
QUICK = (
    *("aimv2", "beit", "beit3", "clip", "deit3", "dinov2_reg4", "dinov3", "eva02_base"),
    *("pe_core", "rope_axial", "siglip", "swin_padded"),
)


@pytest.mark.parametrize("name", slow_but(QUICK, CASES))
def test_matches_timm(name):
    file, model = network(name)
    images = jnp.asarray(nhwc(file["images"]))
    logits, features, maps = quickly(
        model,
        lambda model, images: (
            model(images)[0],
            model.forward_features(images)[0].x,
            model.forward_intermediates(images, output_fmt="NCHW", intermediates_only=True),
        ),
    )(images)
    expected = file["features"]
    if expected.ndim == 4:  # Swin's are (b, h, w, d), ConvNeXt's (b, d, h, w)
        expected = expected if expected.shape[-1] == features.shape[-1] else nhwc(expected)
        expected = expected.reshape(features.shape)
    chex.assert_trees_all_close(np.float64(features), expected, atol=1e-4, rtol=0)
    chex.assert_trees_all_close(np.float64(logits), file["logits"], atol=1e-4, rtol=0)
    for index, found in enumerate(maps):
        chex.assert_trees_all_close(np.float64(found), file[f"map_{index}"], atol=1e-4, rtol=0)
    if not name.endswith("_resized"):
        weights_go_back_to_the_bit(file, model)


def weights_go_back_to_the_bit(file, model):
    published, ours = weights(file), to_published(model)
    assert set(ours) == set(published)
    for key, tensor in published.items():
        np.testing.assert_array_equal(ours[key], tensor, err_msg=key)
