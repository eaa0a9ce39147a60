"""How often `tune` certifies a healed network whose risk is beyond the bound: over a thousand splits, at most δ."""

import argparse
import math

import numpy as np
import pytest
import tune as study
from flax import nnx

from jaxprune import models, recover, reduction
from jaxprune.evaluate.forwards import pixels
from jaxprune.nn.params import jitted

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 0}
HEALING = {"steps": 20, "batch_size": 16, "evaluations": 2, "easing": 0.0, "learning_rate": 1e-2, "trainable": "norms"}


def features(model, images):
    call = lambda network, x: network.pool(network.forward_features(pixels(x, network.preprocessing))[0])
    return np.asarray(jitted(model, call)(images))


@pytest.mark.slow
def test_violations_with_healed_candidates_stay_below_delta():
    """Errors are of images that taught none of them, in the largest of the dense features about their mean."""
    images = np.random.default_rng(0).integers(0, 256, (900, 16, 16, 3)).astype(np.uint8)
    dense = models.create("vit", **SIZES, kernel_init=nnx.initializers.normal(0.3), rngs=nnx.Rngs(0))
    plans = [reduction.Plan("topk", keep_rate=rate, reduction_loc=(0,)) for rate in (0.9, 0.75, 0.5, 0.25)]
    fast = [reduction.apply(dense, plan) for plan in plans]
    healed = [recover.recover(network, images[:60], teacher=dense, **HEALING) for network in fast[1:3]]
    taught = np.any([network.training_images.include(images) for network in healed], axis=0)
    assert taught[:60].all() and taught.sum() == 60
    unseen = images[~taught]
    centre = features(dense, images[taught]).mean(0)
    classes = lambda network: (features(network, unseen) - centre).argmax(-1)
    errors = np.stack([classes(network) != classes(dense) for network in [*fast, *healed]])
    risks, costs = errors.mean(1), [0.9, 0.75, 0.5, 0.25, 0.74, 0.49]
    # Just below the risk of a healed network, which is then certified wrongly now and then.
    alpha, delta, splits = 0.96 * float(risks[4:].max()), 0.1, 1000
    settings = argparse.Namespace(half=150, alpha=alpha, delta=delta, splits=splits)
    wrong, none, _ = study.splits(costs, lambda bank: errors, len(unseen), settings)
    assert 0 < wrong / splits <= delta + 2 * math.sqrt(delta * (1 - delta) / splits)
    assert none < splits and risks[4:].min() < alpha < risks[4:].max()
