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

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}


def answers(model, images):
    logits = jitted(model, lambda network, x: network(pixels(x, network.preprocessing))[0])(images)
    return np.asarray(logits).argmax(-1)


@pytest.mark.slow
def test_violations_with_healed_candidates_stay_below_delta():
    """Their errors are of images that taught none of them; several have a risk about alpha."""
    images = np.random.default_rng(0).integers(0, 256, (900, 16, 16, 3)).astype(np.uint8)
    dense = models.create("vit", **SIZES, kernel_init=nnx.initializers.normal(0.3), rngs=nnx.Rngs(0))
    candidates = []
    for rate in (0.8, 0.6, 0.5, 0.4, 0.25):
        fast = reduction.apply(dense, reduction.Plan("topk", keep_rate=rate, reduction_loc=(1,)))
        settings = {"steps": 20, "batch_size": 8, "evaluations": 2, "easing": 0.0, "learning_rate": 1e-3}
        candidates += [fast, recover.recover(fast, images[:60], teacher=dense, **settings)]
    healed = candidates[1::2]
    taught = np.any([each.training_images.include(images) for each in healed], axis=0)
    assert taught[:60].all() and taught.sum() == 60
    unseen = images[~taught]
    errors = np.stack([answers(each, unseen) != answers(dense, unseen) for each in candidates])
    costs = [1.0 - 0.05 * number for number in range(len(candidates))]
    alpha, delta, splits = float(np.sort(errors.mean(1))[4]) - 0.005, 0.1, 1000
    settings = argparse.Namespace(half=150, alpha=alpha, delta=delta, splits=splits)
    wrong, none, _ = study.splits(costs, lambda bank: errors, len(unseen), settings)
    assert wrong / splits <= delta + 2 * math.sqrt(delta * (1 - delta) / splits)
    assert none < splits and any(errors[1::2].mean(1) > alpha) and any(errors[1::2].mean(1) <= alpha)
