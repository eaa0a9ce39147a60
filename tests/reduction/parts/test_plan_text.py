"""Plans as text, and the amounts and places that make no sense."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import quickly

from jaxprune import checkpoints, flops, models, plugins, reduction
from jaxprune.errors import UserError
from jaxprune.reduction import At, Plan
from jaxprune.reduction.parts.find_method import method_class
from jaxprune.reduction.parts.step_sizes import number, whole
from jaxprune.reduction.topk import TopK

FEW = settings(
    max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
OPTIONS = {
    "evit": {"renormalise": st.booleans()},
    "kmedoids": {"mode": st.sampled_from(["reference", "textbook"]), "first": st.none() | st.integers(0, 3)},
    "dpc_knn": {"k": st.integers(1, 9), "equal_weights": st.booleans()},
    "sinkhorn": {"eps": st.floats(1e-6, 1e30, allow_nan=False)},
    "l2": {"contiguous": st.booleans(), "min_radius": st.none() | st.floats(0.1, 9.0)},
}
# Those that follow every plan inside a network.
INSIDE = [
    name
    for name, cls in sorted(reduction.methods().items())
    if cls.where != "embed" and cls.check.__func__ is reduction.Reducer.check.__func__
]
LOCATIONS = st.lists(st.integers(1, 11), min_size=1, max_size=3, unique=True).map(sorted).map(tuple)


@st.composite
def arguments(draw):
    """Of a common plan: the method, its amount and its options."""
    method = draw(st.sampled_from(INSIDE))
    options = {name: draw(value) for name, value in OPTIONS.get(method, {}).items() if draw(st.booleans())}
    places = draw(LOCATIONS)
    falling = lambda values: tuple(sorted(draw(st.lists(values, min_size=len(places), max_size=len(places))))[::-1])
    amounts = [
        lambda: {"keep_rate": draw(st.floats(0.01, 1.0)), "reduction_loc": places},
        lambda: {"keep_rate": falling(st.floats(0.01, 1.0)), "reduction_loc": places},
        lambda: {"num_keep": falling(st.integers(1, 196)), "reduction_loc": places},
        lambda: {"r": (0, *falling(st.integers(0, 30)))},
        lambda: {"r": draw(st.integers(0, 30)), "inflection": draw(st.sampled_from([0.0, -1.0, 0.25]))},
    ]
    # A method that reads the block before cannot be at block 0, where a single r begins.
    cls = reduction.methods()[method]
    behind = cls.where == "before" and bool(cls.needs)
    amount = amounts[draw(st.integers(0, len(amounts) - 1 - behind))]()
    return {"method": method, "position": draw(st.sampled_from(["mean", "kept"])), **amount, **options}


def test_blocks_in_a_row_have_one_place():
    plan = Plan.from_text("topk@1:keep_rate=0.7+tome@2-5:r=3")
    assert [(at.layer, at.method) for at in plan.steps] == [(1, "topk"), *((layer, "tome") for layer in (2, 3, 4, 5))]
    assert plan.text == "topk@1:keep_rate=0.7+tome@2-5:r=3" and Plan.from_text(plan.text) == plan
    for places in ("5-2", "2-", "-2", "0-5000", "a-b", "1-2-3"):
        with pytest.raises(UserError, match="names no place: write method@block:amount"):
            Plan.from_text(f"tome@{places}:r=3")
    with pytest.raises(UserError, match="more than 10000 steps"):  # a short text must not become a long plan
        Plan.from_text("+".join(["tome@0-999:r=3"] * 4000))
    with pytest.raises(UserError, match="names block 999999999: no network has 10000 blocks"):
        Plan.from_text("tome:r=3,reduction_loc=(999999999,)")


class Backwards(TopK):
    """A method that no file or package names."""

    where = "before"
    needs = frozenset()

    def __call__(self, tokens, attended, *, train=False, key=None):
        rows = jnp.arange(self.step.tokens_in)[::-1][None, : self.step.num_keep]
        return reduction.keep_rows(tokens, jnp.tile(rows, (len(tokens.x), 1)), self.step.num_prefix_tokens)


def tiny():
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 3, "num_heads": 2, "num_classes": 2}
    return models.create("vit", **sizes, rngs=nnx.Rngs(0))


def test_a_class_is_a_method():
    plan, steps = Plan(Backwards, 0.5, (1, 2)), (At(1, Backwards, keep_rate=0.5), At(2, Backwards, keep_rate=0.25))
    assert plan == Plan(steps=steps) and hash(plan) == hash(Plan(steps=steps)) and plan != Plan("topk", 0.5, (1, 2))
    assert Plan(TopK, 0.5, (1,)) == Plan("topk", 0.5, (1,)) and Plan(TopK, r=2).text == "topk:r=2"
    assert repr(steps[0]) == "At(1, Backwards, keep_rate=0.5)" and "Plan(Backwards, keep_rate=0.5" in repr(plan)
    fast = reduction.apply(tiny(), plan)
    kept = quickly(fast, lambda model, images: model(images)[1].kept[1])(jnp.ones((1, 16, 16, 3)))
    np.testing.assert_array_equal(kept, [[8, 9, 10, 11]])
    assert flops.of_model(fast) == flops.of_model(tiny(), plan)


def test_a_registered_class_has_a_name_in_text(monkeypatch, tmp_path):
    monkeypatch.setattr(plugins, "_REGISTERED", {})
    reduction.register("backwards", Backwards)
    plan = Plan(Backwards, 0.5, (1,))
    assert plan.text == "backwards@1:keep_rate=0.5" and Plan("backwards", 0.5, (1,)) == plan
    assert reduction.methods()["backwards"] is Backwards
    check_round_trip(plan)
    check_round_trip(Plan(Backwards, r=2))
    again = type("Again", (Backwards,), {})
    reduction.register("backwards", again)  # a cell that is run twice
    assert reduction.methods()["backwards"] is again
    fast = reduction.apply(tiny(), Plan(again, 0.5, (1,)))
    checkpoints.save_model(fast, tmp_path / "fast.safetensors")
    assert checkpoints.load_model(tmp_path / "fast.safetensors").plan == Plan("backwards", 0.5, (1,))


def check_round_trip(plan: Plan):
    again = Plan.from_text(plan.text)
    assert again == plan and hash(again) == hash(plan) and again.text == plan.text
    for depth in (1, 12):
        assert again.steps_for(depth) == plan.steps_for(depth)


@pytest.mark.slow
@FEW
@given(arguments())
def test_a_common_plan_is_its_text(arguments):
    plan = Plan(**arguments)
    check_round_trip(plan)
    if plan.steps:
        check_round_trip(Plan(steps=plan.steps))
    check_round_trip(plan.behind(Plan("from_scores", 0.5, in_order=True)))


@pytest.mark.parametrize("text", ["tome@1:r=3,position=kept+topk@4:num_keep=9", "topk:r=8,inflection=-1.0", "topk:r=0"])
def test_texts_are_kept_as_they_are(text):
    assert Plan.from_text(text).text == text


def test_text_of_common_plans():
    assert Plan.from_text("tome:r=8") == Plan("tome", r=8)
    assert Plan.from_text("topk:keep_rate=0.5", reduction_loc=(2,)) == Plan("topk", 0.5, (2,))
    assert Plan.from_text("topk", keep_rate=0.5, reduction_loc=2) == Plan("topk", 0.5, (2,))
    assert Plan.from_text("from_scores", keep_rate=0.5, reduction_loc=2) == Plan("from_scores", 0.5)
    # An amount in the text stands in place of the default one.
    assert Plan.from_text("tome:r=8", keep_rate=0.5) == Plan("tome", r=8)
    assert Plan.from_text("topk:keep_rate=0.5,reduction_loc=(1, 2)") == Plan("topk", 0.5, (1, 2))
    assert Plan.from_text("topk:reduction_loc=(1,2),keep_rate=(0.9,0.8)") == Plan("topk", (0.9, 0.8), (1, 2))
    with pytest.raises(UserError, match=r"parentheses in 'reduction_loc=\(1,2' are not balanced: write several"):
        Plan.from_text("topk:reduction_loc=(1,2")
    assert Plan.from_text(" topk@3:keep_rate=0.7 + tome@6:r=8 ").text == "topk@3:keep_rate=0.7+tome@6:r=8"
    assert Plan("topk", r=(0, 0)).text == "" and Plan.from_text("") == Plan("topk", r=(0, 0))


def test_a_step_is_its_settings():
    step = At(3, "evit", keep_rate=0.7, renormalise=True)
    assert step == At(3, "evit", renormalise=True, keep_rate=np.float64(0.7))
    assert hash(step) == hash(At(3, "evit", keep_rate=0.7, renormalise=True))
    assert step != At(3, "evit", keep_rate=0.7) and step != At(4, "evit", keep_rate=0.7, renormalise=True)
    assert repr(step) == "At(3, 'evit', keep_rate=0.7, renormalise=True)"
    assert At(3, "topk", num_keep=7) != At(3, "topk", r=7)


NAN = float("nan")
BAD = {
    "no amount": (lambda: At(3, "topk"), "topk at 3 has none: write for example keep_rate=0.7"),
    "two amounts": (lambda: At(3, "topk", keep_rate=0.5, r=2), "has keep_rate and r"),
    "rate nan": (lambda: At(3, "topk", keep_rate=NAN), r"keep_rate nan is outside \(0, 1\]: use 0\.05"),
    "rate 0": (lambda: At(3, "topk", keep_rate=0), r"keep_rate 0\.0 is outside"),
    "rate negative": (lambda: Plan("topk", -0.5), r"keep_rate -0\.5 is outside"),
    "rate bool": (lambda: At(3, "topk", keep_rate=True), "keep_rate True is not a number: write one, such as 0.7"),
    "plan's rate bool": (lambda: Plan("topk", True), "keep_rate True is not a number"),
    "rates with a nan": (lambda: Plan("topk", (0.5, NAN, 0.1)), r"keep_rate nan is outside"),
    "count 0": (lambda: At(3, "topk", num_keep=0), "num_keep 0 keeps nothing: use 1"),
    "count negative": (lambda: Plan("topk", num_keep=-3, reduction_loc=1), "num_keep -3 keeps nothing"),
    "count bool": (lambda: At(3, "topk", num_keep=True), "num_keep True is not a number"),
    "r negative": (lambda: At(3, "tome", r=-1), "r -1 would add tokens"),
    "r bool": (lambda: Plan("tome", r=False), "r False is not a number"),
    "inflection nan": (lambda: Plan("tome", r=8, inflection=NAN), r"outside \[-1, 1\]: use 0\.0"),
    "place bool": (lambda: At(True, "topk", r=2), "block True is not a number"),
    "place negative": (lambda: At(-1, "topk", r=2), "blocks count from 0"),
    "no such place": (lambda: At("output", "topk", r=2), "a step is at the number of a block, or at 'input'"),
    "inside at the input": (
        lambda: At("input", "topk", r=2),
        "topk cannot work at 'input': give the number of a block",
    ),
    "a scorer inside": (lambda: At(2, "from_scores", keep_rate=0.5), r"use At\('input', …\)"),
    "a scorer by r": (lambda: At("input", "from_scores", r=2), "use keep_rate or num_keep instead of r"),
    "no such position": (lambda: At(2, "tome", r=2, position="middle"), "Unknown position of merged rows 'middle'"),
    "a place twice": (lambda: Plan(steps=(At(3, "topk", r=2), At(3, "tome", r=2))), "name each block once"),
    "places falling": (lambda: Plan(steps=(At(4, "topk", r=2), At(3, "tome", r=2))), "in rising order"),
    "two at the input": (lambda: Plan(steps=(At("input", "from_scores", num_keep=4),) * 2), "name each block once"),
    "rates rising": (
        lambda: Plan(steps=(At(1, "topk", keep_rate=0.5), At(3, "evit", keep_rate=0.6))),
        r"keep_rate rises from step to step, and tokens never come back: use \(0\.5, 0\.5\)",
    ),
    "counts rising": (lambda: Plan("topk", num_keep=(3, 4), reduction_loc=(1, 2)), r"rises.* use \(3, 3\)"),
    "a method and steps": (lambda: Plan("topk", steps=(At(1, "topk", r=1),)), "give only one of them"),
    "steps and an amount": (
        lambda: Plan(steps=(At(1, "topk", r=1),), r=8),
        "^r: options go into the steps, and so do amounts",
    ),
    "steps and other settings": (
        lambda: Plan(steps=(At(1, "topk", r=1),), keep_rate=0.5, reduction_loc=2, num_keep=3, inflection=0.5),
        "^keep_rate, reduction_loc, num_keep, inflection: options go",
    ),
    "rate and count": (
        lambda: Plan("topk", 0.5, (3,), num_keep=9),
        r"num_keep or keep_rate, not both: leave keep_rate=0\.5 or num_keep=\(9,\) out",
    ),
    "inflection without r": (lambda: Plan("topk", inflection=0.5), r"inflection=0\.5 tilts r .* there is no r"),
    "nothing": (lambda: Plan(reduction_loc=1), r"reduction_loc=1 have no method: write Plan\('topk'"),
    "text without a place": (lambda: Plan.from_text("topk@3:r=2+tome:r=1"), "'tome:r=1' in plan .* names no place"),
    "text with half an item": (
        lambda: Plan.from_text("topk:keep_rate"),
        "'keep_rate' in plan 'topk:keep_rate' sets nothing",
    ),
    "text of nothing known": (lambda: Plan.from_text("topkk@3:r=2"), "Did you mean 'topk'"),
    "no method, with the ways to add one": (
        lambda: Plan("mine"),
        r"its class, Plan\(MyMethod, …\).*\.register\(.*group jaxprune\.reduction.*file in jaxprune/reduction",
    ),
    "no reducer": (
        lambda: method_class(dict),
        r"<class 'dict'> is not a method: give a name such as 'topk', or a subclass",
    ),
    "text of a class without a name": (
        lambda: Plan(Backwards, r=2).text,
        r"Backwards has no name .*register\('my_method', Backwards\)",
    ),
    "a name in use": (lambda: reduction.register("topk", Backwards), "has a method 'topk' already"),
    "a name that is none": (lambda: reduction.register("my method", Backwards), "use letters, digits and _"),
    "a class that is none": (lambda: reduction.register("mine", dict), "is not a subclass of Reducer"),
}


VALUES = {
    "text": (lambda: number("keep_rate", "half"), "keep_rate 'half' is not a number: write one, such as 0.7"),
    "nan": (lambda: whole("num_keep", NAN), "num_keep nan is not a whole number"),
    "infinity": (lambda: whole("r", float("inf")), "r inf is not a whole number"),
    "parts": (lambda: whole("num_keep", 2.5), r"num_keep 2\.5 is not a whole number: use 2 or 3"),
    "parts of a block": (lambda: whole("reduction_loc", 1.5), r"reduction_loc 1\.5 is not a whole number"),
}


@pytest.mark.parametrize("what", VALUES)
def test_what_is_no_number_is_refused(what):
    make, message = VALUES[what]
    with pytest.raises(UserError, match=message):
        make()


def test_whole_numbers_may_be_floats():
    assert whole("r", 8.0) == 8 and type(whole("r", np.int64(8))) is int


@pytest.mark.parametrize("what", BAD)
def test_what_makes_no_sense_is_refused(what):
    make, message = BAD[what]
    with pytest.raises(UserError, match=message):
        make()
