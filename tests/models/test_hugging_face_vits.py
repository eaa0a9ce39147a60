"""Networks of Hugging Face's transformers, loaded under their own names: what they compute, ours computes."""

import ast

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, golden_names, nhwc, quickly, weights

from jaxprune import checkpoints, models
from jaxprune.nn.params import unfilled

CASES = sorted(name.removeprefix("hosts/") for name in golden_names("hosts/hf_*"))
# Hugging Face pools DINO's networks by their CLS token, timm by the mean; and CLIP's tokens are not normalised there.
POOLED_BY_CLS = ("hf_dinov2", "hf_dinov2_registers", "hf_dinov2_giant", "hf_dinov3", "hf_dinov3_plus")


QUICK = ("hf_dinov3", "hf_siglip", "hf_vjepa2")


@pytest.mark.parametrize("name", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES])
def test_matches_transformers(name):
    file = golden(f"hosts/{name}")
    options = ast.literal_eval(str(file["options"]))
    if name in POOLED_BY_CLS:
        options["global_pool"] = "token"
    model = unfilled(lambda: models.create(str(file["name"]), **options, rngs=nnx.Rngs(0)))
    checkpoints.load_pretrained(model, weights(file))
    both = quickly(model, lambda model, images: (model(images)[0], model.forward_features(images)[0].x))
    images = file["images"]
    pooled, features = both(jnp.asarray(nhwc(images) if images.ndim == 4 else images.transpose(0, 1, 3, 4, 2)))
    if "pooled" in file:
        chex.assert_trees_all_close(np.float64(pooled), file["pooled"], atol=1e-4, rtol=0)
    if "features" in file and name != "hf_clip":
        chex.assert_trees_all_close(np.float64(features), file["features"], atol=1e-4, rtol=0)
