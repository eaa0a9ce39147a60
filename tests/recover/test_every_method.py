"""Every method with a gradient recovers: the loss falls within thirty steps on a tiny network."""

import numpy as np
import pytest
from flax import nnx

from jaxprune import models, recover, reduction, scoring
from jaxprune.data.arrays import of_arrays
from jaxprune.reduction import Plan
from jaxprune.train.writer import read_metrics

SIZES = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2}


ON_IMAGES = [name for name, cls in sorted(reduction.methods().items()) if 2 in cls.dims]


@pytest.mark.slow
@pytest.mark.parametrize("method", ON_IMAGES)
def test_the_loss_falls(method, tmp_path):
    teacher = models.create("vit", **SIZES, num_classes=3, kernel_init=nnx.initializers.normal(0.2), rngs=nnx.Rngs(0))
    where = reduction.methods()[method].where
    scorer = scoring.create("norm", grid=(8, 8)) if where == "embed" else None
    plan = Plan(method, keep_rate=0.5, **({} if scorer else {"reduction_loc": (2,)}))
    fast = reduction.apply(teacher, plan, scorer=scorer, rngs=nnx.Rngs(0))
    images = of_arrays(np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3)).astype(np.uint8))
    settings = recover.Settings(
        steps=30, batch_size=8, learning_rate=1e-3, easing=0.0, flip=False, crop_scale=(1.0, 1.0), evaluations=1
    )
    recover.heal(fast, teacher, images, images, settings, workdir=tmp_path)
    losses = [row["loss"] for row in read_metrics(tmp_path) if row["split"] == "train"]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
