"""Networks without a classifier on several views of an image: the mean of the features."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune import models
from jaxprune.evaluate.contestants import contestant
from jaxprune.evaluate.forwards import pixels, under_plan


def test_features_of_several_views_are_their_mean():
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2, "num_classes": 0}
    model = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    views = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8, 3), np.uint8)
    forward = under_plan(contestant(model))
    outputs = forward.call(forward.arrays, {"image": jnp.asarray(views)})
    features, _ = model(pixels(jnp.asarray(views.reshape(-1, 8, 8, 3)), model.preprocessing))
    np.testing.assert_allclose(outputs["logits"], np.asarray(features).reshape(2, 3, -1).mean(1), atol=1e-5)
    assert "probabilities" not in outputs
