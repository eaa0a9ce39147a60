"""Counts and schedules of plans."""

import numpy as np
import pytest
from flax import nnx
from support import golden

from jaxprune import models, reduction, scoring
from jaxprune.errors import UserError
from jaxprune.reduction.ats import sample_steps


def test_counts_are_the_published_ones():
    table = golden("token_reduction/token_counts")["table"]
    blocks = tuple(range(1, 1 + int(table[:, 2].max())))
    plans = {rate: reduction.Plan("topk", keep_rate=float(rate), reduction_loc=blocks) for rate in set(table[:, 1])}
    for patches, rate, stage, count, again, ats_count, ats_steps in table:
        kept = plans[rate].counts(int(patches))[int(stage) - 1]
        assert kept == count == again
        assert kept + 1 == ats_count
        assert len(sample_steps(kept)) == ats_steps


def test_counts_by_number_and_by_location():
    assert reduction.Plan("topk", keep_rate=(0.9, 0.5), reduction_loc=(1, 4)).counts(196) == (176, 98)
    assert reduction.Plan("topk", num_keep=(100, 50), reduction_loc=(1, 4)).counts(196) == (100, 50)


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ({"reduction_loc": range(1, 3)}, {"reduction_loc": (1, 2)}),
        ({"keep_rate": np.array([0.5, 0.25]), "reduction_loc": np.arange(1, 3)}, {"keep_rate": (0.5, 0.25)}),
        ({"num_keep": np.array([8, 4]), "reduction_loc": [1, 2]}, {"num_keep": (8, 4)}),
        ({"r": np.array([2, 1]), "reduction_loc": range(1, 3)}, {"r": (2, 1)}),
    ],
)
def test_several_numbers_in_any_form_are_the_same_plan(written, plain):
    plan = reduction.Plan("tome", **written)
    assert plan == reduction.Plan("tome", **{"reduction_loc": (1, 2), **plain})
    assert plan == reduction.Plan.from_text(plan.text)


def test_options_of_a_plan_are_plain_values():
    with pytest.raises(UserError, match=r"mask_block=\(1,\) is not a whole number"):
        hash(plan := reduction.Plan("from_scores", keep_rate=0.5, mask_block=[1]))
        sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
        model = models.create("vit", **sizes, rngs=nnx.Rngs(0))
        reduction.apply(model, plan, scorer=scoring.create("centre", grid=(4, 4)))
    plan = reduction.Plan("kmedoids", keep_rate=0.5, reduction_loc=1, first=np.int64(3))
    assert [type(value) for name, value in plan.options if name == "first"] == [int]


@pytest.mark.parametrize(
    ("plan", "removed"),
    [
        (reduction.Plan("tome", r=4), (4, 4, 4, 4, 4)),
        (reduction.Plan("tome", r=(3, 0, 2)), (3, 0, 2, 0, 0)),
        (reduction.Plan("tome", r=4, inflection=-1.0), (8, 6, 4, 2, 0)),
        (reduction.Plan("tome", r=4, inflection=1.0), (0, 2, 4, 6, 8)),
        (reduction.Plan("tome", r=13, inflection=-0.5), (19, 16, 13, 10, 7)),
    ],
)
def test_schedules_of_r(plan, removed):
    assert plan.removed(5) == removed
    assert tuple(at.layer for at in plan.steps_for(5)) == tuple(layer for layer, count in enumerate(removed) if count)
    model = models.create(
        "vit", img_size=32, patch_size=4, embed_dim=8, depth=5, num_heads=2, num_classes=2, rngs=nnx.Rngs(0)
    )
    reducers = [block.reducer for block in reduction.apply(model, plan).blocks]
    rows = 64
    for count, reducer in zip(removed, reducers, strict=True):
        assert (reducer is None) == (count == 0)
        rows -= min(count, rows // 2)
        assert reducer is None or reducer.num_tokens() == rows


def test_r_at_some_blocks():
    plan = reduction.Plan("tome", r=8, reduction_loc=(1, 2, 4))
    assert plan.removed(6) == (0, 8, 8, 0, 8, 0) and plan.text == "tome@1-2:r=8+tome@4:r=8"
    assert reduction.Plan.from_text(plan.text).steps == plan.steps
    assert reduction.Plan("tome", r=(4, 2), reduction_loc=(1, 3)).removed(5) == (0, 4, 0, 2, 0)
    assert reduction.Plan.from_text("tome:r=8,reduction_loc=(1, 2, 4)") == plan
    assert reduction.Plan.from_text("tome:r=8", reduction_loc=(3, 6)) == reduction.Plan("tome", r=8)  # of other plans
    for arguments, problem in (
        ({"r": (8, 8, 8)}, r"3 values for 2 blocks \(3, 6\): give one a block"),
        ({"r": 8, "inflection": -1.0}, r"inflection tilts r over all blocks, and reduction_loc is \(3, 6\)"),
    ):
        with pytest.raises(UserError, match=problem):
            reduction.Plan("tome", reduction_loc=(3, 6), **arguments)


def test_a_plan_is_its_hash():
    plan = reduction.Plan("tome", r=8)
    assert plan == reduction.Plan("tome", r=8) and hash(plan) == hash(reduction.Plan("tome", r=8))
    assert plan != reduction.Plan("tome", r=8, inflection=-1.0)
    assert "r=8" in repr(plan) and "reduction_loc" not in repr(plan)
    assert len({reduction.Plan("topk"), reduction.Plan("topk", 0.7), reduction.Plan("topk", 0.5)}) == 2


def test_applying_again_replaces_the_plan_and_leaves_the_model():
    model = models.create(
        "vit", img_size=16, patch_size=4, embed_dim=8, depth=3, num_heads=2, num_classes=2, rngs=nnx.Rngs(0)
    )
    first = reduction.apply(model, reduction.Plan("tome", 0.5, reduction_loc=(0, 1)))
    again = reduction.apply(first, reduction.Plan("topk", 0.5, reduction_loc=(2,)))
    assert [block.reducer is not None for block in model.blocks] == [False, False, False]
    assert [block.reducer is not None for block in first.blocks] == [True, True, False]
    assert [block.reducer is not None for block in again.blocks] == [False, False, True]
    assert not any(block.proportional for block in again.blocks)
    assert again.head.kernel[...] is model.head.kernel[...]
    again.head.kernel[...] = again.head.kernel[...] + 1
    assert (again.head.kernel[...] != model.head.kernel[...]).all()
