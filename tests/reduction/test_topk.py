"""Top-K inside the ViT against the published implementation."""

import json

import chex
import jax.numpy as jnp
import numpy as np
from flax import nnx
from support import golden, nhwc

from jaxprune import checkpoints, models, reduction


def host(file_name: str):
    """The shared backbone of the golden files, dense."""
    shared = golden(f"token_reduction/{file_name}")
    config = json.loads(str(shared["config"]))
    model = models.create(
        "vit",
        img_size=config["img"],
        patch_size=config["patch"],
        embed_dim=config["dim"],
        depth=config["depth"],
        num_heads=config["heads"],
        num_classes=config["classes"],
        rngs=nnx.Rngs(0),
    )
    skip = {"config", "note", "columns"}
    tensors = {k.removeprefix("w."): v for k, v in shared.items() if k not in skip}
    return config, checkpoints.load_pretrained(model, tensors)


def test_matches_the_published_model():
    config, model = host("backbone_p12")
    file = golden("token_reduction/model_p12_topk")
    plan = reduction.Plan("topk", keep_rate=config["keep"], reduction_loc=tuple(config["loc"]))
    logits, aux = reduction.apply(model, plan)(jnp.asarray(nhwc(file["images"])))
    chex.assert_trees_all_close(logits, file["logits"], atol=2e-5, rtol=2e-5)
    for index, layer in enumerate(plan.reduction_loc):
        np.testing.assert_array_equal(aux.stages[index].kept, file[f"kept_{layer}"])
        np.testing.assert_array_equal(aux.kept[index], file[f"kept_origin_{layer}"])
    for key, value in file.items():
        if key.startswith("features_"):
            chex.assert_trees_all_close(aux.features[int(key[9:])], value, atol=2e-5, rtol=2e-5)
