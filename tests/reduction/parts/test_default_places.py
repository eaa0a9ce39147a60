"""Plans without places, in networks of any depth; options that a method does not have."""

import pytest
from flax import nnx

from jaxprune import models, reduction
from jaxprune.errors import UserError
from jaxprune.reduction import At, Plan
from jaxprune.reduction.topk import TopK

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "num_heads": 2, "num_classes": 2}


class Own(TopK):
    """A method of a user, without a name."""


def steps_of(plan, depth):
    model = nnx.eval_shape(lambda: models.create("vit", **SIZES, depth=depth, rngs=nnx.Rngs(0)))
    return [r.step.layer for r in reduction.installed(nnx.eval_shape(lambda: reduction.apply(model, plan)))]


@pytest.mark.parametrize(
    ("depth", "places"),
    [
        (5, [1, 2, 3]),
        (2, [1]),
        pytest.param(12, [3, 6, 9], marks=pytest.mark.slow),
        pytest.param(8, [2, 4, 6], marks=pytest.mark.slow),
        pytest.param(3, [1, 2], marks=pytest.mark.slow),
    ],
)
def test_a_plan_without_places_reduces_after_every_quarter(depth, places):
    plan = Plan("topk", keep_rate=0.9)
    assert steps_of(plan, depth) == places == [at.layer for at in plan.steps_for(depth)]
    assert [at.amount.rate for at in plan.steps_for(depth)] == pytest.approx([0.9, 0.81, 0.729][: len(places)])
    assert steps_of(Plan(Own, keep_rate=0.9), depth) == places


def test_places_that_are_given_stay():
    assert Plan("topk", 0.5, (3, 6, 9)).steps_for(24) == Plan("topk", 0.5).steps_for(12)
    assert Plan("topk", 0.5, (3, 6, 9)) != Plan("topk", 0.5) == Plan("topk", keep_rate=0.5)
    with pytest.raises(UserError, match="Block 6 of a plan is outside"):
        steps_of(Plan("topk", 0.9, (3, 6, 9)), 6)


@pytest.mark.parametrize(
    "plan",
    [
        Plan("topk", 0.5),
        Plan("tome", (0.9, 0.6, 0.4), position="kept"),
        Plan("topk", num_keep=(9, 5, 3)),
        Plan("dpc_knn"),
    ],
)
def test_a_plan_without_places_has_none_in_its_text_either(plan):
    assert "@" not in plan.text and Plan.from_text(plan.text) == plan and hash(Plan.from_text(plan.text)) == hash(plan)
    assert eval(repr(plan), {"Plan": Plan}).steps_for(8) == plan.steps_for(8) or "position" in plan.text


def test_it_follows_a_step_at_the_input_and_other_rates():
    entrance = Plan("from_scores", keep_rate=0.5)
    both = Plan("topk", 0.4).behind(entrance)
    assert [at.layer for at in both.steps_for(8)] == ["input", 2, 4, 6] and Plan.from_text(both.text) == both
    assert Plan("topk", 0.4).with_keep_rate(0.9).steps_for(8)[0] == At(2, "topk", keep_rate=0.9)
    changed = both.with_keep_rate(0.9)
    assert changed.steps_for(8)[:2] == (entrance.steps[0], At(2, "topk", keep_rate=0.9))
    for plan in (both, changed, Plan("tome", r=2).behind(entrance)):
        assert eval(repr(plan), {"Plan": Plan, "At": At}) == plan
    with pytest.raises(UserError, match="3 steps, and 2 blocks have no quarters"):
        Plan("topk", num_keep=(9, 5, 3)).steps_for(2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Plan("topk", keep=0.5),
        lambda: Plan(Own, keep=0.5),
        lambda: At(3, "topk", keep=0.5, keep_rate=0.5),
        lambda: Plan.from_text("topk:keep=0.5"),
        lambda: Plan.from_text("topk@3:keep_rate=0.5,keep=0.5"),
    ],
)
def test_an_option_that_a_method_does_not_have_is_refused_when_the_plan_is_made(make):
    with pytest.raises(UserError, match=r"has no option 'keep'.*keep_rate.*num_keep"):
        make()


def test_the_options_of_the_method_are_in_the_message():
    with pytest.raises(UserError, match=r"dpc_knn has no option 'equal'.*Did you mean 'equal_weights'.*density_noise"):
        Plan("dpc_knn", equal=True)
    with pytest.raises(UserError, match="options go into the steps"):
        Plan(steps=(At(1, "topk", keep_rate=0.5),), fuse=True)
