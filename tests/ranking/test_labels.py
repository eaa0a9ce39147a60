"""Pseudo labels against the published numbers, and every way to make them cheaper against the plain one."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, nhwc, quick_compile, weights

from jaxprune import checkpoints, mim
from jaxprune.ranking.labels import pseudo_labels

FILE = golden("ltrp_papr/ltrp_labels_24x4")
SIZES = json.loads(str(FILE["config_json"]))
IMAGES, NOISE = jnp.asarray(nhwc(FILE["images"])), jnp.asarray(FILE["noise"])


def published():
    model = mim.create(
        "mae",
        img_size=SIZES["img"],
        patch_size=SIZES["patch"],
        embed_dim=SIZES["E"],
        depth=SIZES["depth"],
        num_heads=SIZES["heads"],
        mlp_ratio=float(SIZES["mlp_ratio"]),
        decoder_embed_dim=SIZES["DE"],
        decoder_depth=SIZES["ddepth"],
        decoder_num_heads=SIZES["dheads"],
        norm_pix_loss=False,
        rngs=nnx.Rngs(0),
    )
    return checkpoints.load_pretrained(model, weights(FILE, "mae/"))


MODEL = published()


def labels(images=IMAGES, noise=NOISE, **options):
    options = {"mask_ratio": SIZES["mask_ratio"], **options}
    make = jax.jit(lambda images, noise: pseudo_labels(MODEL, images, noise=noise, **options))
    return make(images, noise)


def test_labels_match():
    found = labels()
    np.testing.assert_array_equal(found.ids_keep, FILE["ids_keep"])
    np.testing.assert_array_equal(found.masked, FILE["mask"].astype(bool))
    chex.assert_trees_all_close(found.relevance, FILE["s"], rtol=2e-4)
    chex.assert_trees_all_close(np.asarray(found.relevance, np.float64), FILE["s_f64"], rtol=2e-4)


@pytest.mark.parametrize(
    ("removal", "over", "name"),
    [
        ("mask_token", "all", "masktoken_all"),
        ("mask_token", "masked", "masktoken_masked"),
        ("attention", "all", "attnmask_all"),
        ("encoder", "masked", "encoder_excluded"),
    ],
)
def test_other_readings_match(removal, over, name):
    found = labels(removal=removal, over=over).relevance
    chex.assert_trees_all_close(np.asarray(found, np.float64), FILE[f"s_{name}_f64"], rtol=2e-4)
