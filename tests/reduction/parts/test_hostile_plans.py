"""Plans as text that were damaged, or made to do harm: a plan, or one short line, soon."""

import random
import time

import jaxtyping
import pytest
from flax import nnx

from jaxprune import models, reduction
from jaxprune.errors import UserError
from jaxprune.reduction import Plan

PLANS = (
    "topk@3:keep_rate=0.7+tome@6:r=8",
    "tome:r=8,inflection=-1",
    "evit@3:keep_rate=0.5+topk@6:num_keep=5",
    "sinkhorn:keep_rate=0.5,reduction_loc=(3,6,9)",
    "ats:num_keep=(10,5,2)",
    "dpc_knn@2:num_keep=9,k=5,equal_weights=true",
    "kmedoids@1:keep_rate=0.5,position=kept,iterations=3",
    "sinkhorn@3:num_keep=5,eps=2,iterations=3",
    "from_scores@input:num_keep=49",
)
PIECES = (
    *(
        "@",
        "+",
        ":",
        "=",
        "(",
        ")",
        ",",
        "nan",
        "inf",
        "-1",
        "1e309",
        "none",
        "true",
        "topk",
        "tome",
        "input",
        "r",
        "0",
    ),
    *(
        "layer=3,",
        "method=x,",
        "steps=1,",
        "self=1,",
        "seed=abc,",
        "eps=none,",
        "k=x,",
        "9" * 30,
        "9" * 5000,
        "(((((",
        "²",
        "٣",
    ),
    *("\x00", "\x1b[2J", " ", "\n", "rngs=1,", "step=2,", "position", "keep_rate", "num_keep", "1_0", "é"),
)
LONGEST = 600  # characters of an error


@pytest.fixture(autouse=True)
def without_type_checks(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is outside of the tests


def mutated(text, rng):
    """Returns a text with one to four letters or pieces removed, doubled or put in."""
    for _ in range(rng.randint(1, 4)):
        place, other = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        change = rng.random()
        if change < 0.3:
            text = text[:place] + text[place + 1 :]
        elif change < 0.75:
            text = text[:place] + rng.choice(PIECES) + text[place:]
        elif change < 0.85:
            text = text[:place] + text[other:]
        else:
            text = text[:place] + chr(rng.randrange(1, 0x3000)) + text[place:]
    return text


def try_plans(count, seed=0):
    """Reads mutated plans and applies those that are plans; returns (refused, longest message, slowest seconds)."""
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 12, "num_heads": 2, "num_classes": 3}
    model = nnx.eval_shape(lambda: models.create("vit", **sizes, rngs=nnx.Rngs(0)))
    rng, refused, longest, slowest, tried = random.Random(seed), 0, 0, 0.0, set()
    for _ in range(count):
        text = mutated(rng.choice(PLANS), rng)
        start = time.process_time()
        try:
            plan = Plan.from_text(text)
            assert Plan.from_text(plan.text) == plan
            if plan not in tried:
                tried.add(plan)
                nnx.eval_shape(lambda plan=plan: reduction.apply(model, plan, rngs=nnx.Rngs(0)))
        except UserError as error:
            refused, longest = refused + 1, max(longest, len(str(error)))
            assert "\x1b" not in str(error) and "\n" not in str(error), text
        except Exception as error:
            raise AssertionError(f"{text!r} ended in {type(error).__name__}: {error}") from error
        slowest = max(slowest, time.process_time() - start)
    return refused, longest, slowest


def test_mutated_plans_end_in_a_line():
    refused, longest, slowest = try_plans(500)
    assert refused > 250 and longest <= LONGEST and slowest < 5


@pytest.mark.parametrize(
    "text",
    [
        "topk@3:keep_rate=0.7+" * 150_000,
        "(" * 3_000_000,
        "a" * 3_000_000,
        "9" * 60_000,
        f"topk@{'9' * 60_000}:r=1",
        f"topk@3:{'x=1,' * 16_000}",
        f"topk:r={'(' * 60_000}",
        f"tome:r={'9' * 4000}",
        "topk@²:r=1",
        "topk@3:layer=3,keep_rate=0.5",
        "sinkhorn@3:num_keep=5,eps=none",
    ],
    ids=lambda text: f"{text[:24]}…{len(text)}",
)
def test_a_long_or_odd_text_is_refused_at_once(text):
    start = time.process_time()
    with pytest.raises(UserError) as error:
        plan = Plan.from_text(text)
        sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 12, "num_heads": 2, "num_classes": 3}
        reduction.apply(models.create("vit", **sizes, rngs=nnx.Rngs(0)), plan, rngs=nnx.Rngs(0))
    assert time.process_time() - start < 5 and len(str(error.value)) <= LONGEST
