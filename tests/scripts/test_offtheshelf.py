"""The study of trained networks under plans: a plan in every block stands for one in three steps, if it can."""

import offtheshelf
import pytest
from flax import nnx

from jaxprune import models
from jaxprune.flops import of_model
from jaxprune.reduction import Plan


def test_a_plan_in_every_block_has_about_the_flops_or_is_left_out():
    sizes = {"img_size": 64, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2}
    model = nnx.eval_shape(lambda: models.create("vit", **sizes, rngs=nnx.Rngs(0)))
    three = Plan("random", keep_rate=0.7, reduction_loc=(1, 2, 3))
    spread = offtheshelf.in_every_block(model, three)
    assert of_model(model, spread).total == pytest.approx(of_model(model, three).total, rel=offtheshelf.APART)
    # No more than a quarter of the patches can leave in each of four blocks.
    assert offtheshelf.in_every_block(model, Plan("random", keep_rate=0.05, reduction_loc=(0,))) is None
