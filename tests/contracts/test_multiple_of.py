"""Every method rounds the rows of its steps up to a multiple that a plan asks for."""

import numpy as np
import pytest
from flax import nnx
from hosts import host, images
from support import quickly
from test_reduction import METHODS, apply, cls_of, home

from jaxprune import models, reduction, scoring
from jaxprune.errors import UserError
from jaxprune.reduction import At, Plan
from jaxprune.reduction.parts.base import is_idle


def counts(model, plan):
    """[(rows behind a step with the prefix, those of the same plan without rounding)]"""
    networks = [apply(model, one) for one in (plan, Plan.from_text(plan.text.replace(",multiple_of=4", "")))]
    steps = [[block.reducer for block in network.blocks if block.reducer is not None] for network in networks]
    return [tuple(r.step.num_prefix_tokens + r.num_tokens() for r in pair) for pair in zip(*steps, strict=True)]


@pytest.mark.parametrize("method", [name for name in METHODS if cls_of(name).where != "embed"])
def test_rows_are_a_multiple_and_never_fewer(method):
    on = home(method)
    plan = Plan(method, keep_rate=0.6, reduction_loc=(1,), multiple_of=4)
    assert Plan.from_text(plan.text) == plan != Plan(method, keep_rate=0.6, reduction_loc=(1,))
    follows = cls_of(method).follows_count(dict(plan.steps[0].options))
    arriving = host(on).num_prefix_tokens + host(on).sites()[0].num_patches
    for rows, before in counts(host(on), plan):
        assert rows >= before
        assert not follows or rows % 4 == 0 or rows == arriving


def test_a_rounded_plan_is_the_plan_that_keeps_as_many():
    model = host("cls")  # 16 patches and a class token
    rounded, same = (
        reduction.apply(model, plan)
        for plan in (
            Plan("topk", keep_rate=0.6, reduction_loc=(1, 2), multiple_of=8),
            Plan("topk", num_keep=(15, 7), reduction_loc=(1, 2)),
        )
    )
    logits = [quickly(fast, lambda fast, images: fast(images)[0])(images("cls")) for fast in (rounded, same)]
    np.testing.assert_array_equal(*logits)


def test_a_scorer_at_the_input_keeps_whole_groups():
    model = models.create("vit_tiny_patch16_224", rngs=nnx.Rngs(0), depth=1)
    scorer = scoring.create("centre", grid=model.grid)
    fast = reduction.apply(model, Plan("from_scores", keep_rate=0.5, multiple_of=128), scorer=scorer)
    assert fast.pruner.step.num_keep == 127
    at = At("input", "from_scores", keep_rate=0.7, multiple_of=128)
    assert reduction.apply(model, Plan(steps=(at,)), scorer=scorer).pruner.step.num_keep == 196


def test_by_rows_removed_and_in_text():
    plan = Plan("tome", r=3, multiple_of=8)
    assert plan.text == "tome:r=3,multiple_of=8" and "multiple_of=8" in repr(plan)
    fast = reduction.apply(host("cls"), plan)
    rows = [1 + block.reducer.num_tokens() for block in fast.blocks if block.reducer is not None]
    assert rows == [16, 16, 16]
    assert all(is_idle(type(block.reducer), block.reducer.step) for block in fast.blocks[1:] if block.reducer)


@pytest.mark.parametrize("multiple_of", [0, -8])
def test_other_numbers_are_refused(multiple_of):
    with pytest.raises(UserError, match="multiple_of"):
        Plan("topk", multiple_of=multiple_of)
