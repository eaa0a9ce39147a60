"""Plans as text that were damaged, or made to do harm: a plan, or one short line, soon."""

import time

import attacks
import jaxtyping
import pytest
from attacks import plans
from flax import nnx

from jaxprune import models, reduction
from jaxprune.errors import UserError
from jaxprune.reduction import Plan

LONGEST = 600  # characters of an error


@pytest.fixture(autouse=True)
def without_type_checks(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is outside of the tests


@pytest.mark.slow
def test_mutated_plans_end_in_a_line(tmp_path):
    outcome = attacks.run(plans.plans(tmp_path, 500, 0))
    assert not outcome.raw and not outcome.unnoticed
    assert outcome.refused > 250 and outcome.longest <= LONGEST and outcome.seconds < 5


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
        f"tome@3:r=4,{'x' * 5000}=1",
    ],
    ids=lambda text: f"{text[:24]}…{len(text)}",
)
def test_a_long_or_odd_text_is_refused_at_once(text):
    start = time.process_time()
    with pytest.raises(UserError) as error:
        plan = Plan.from_text(text)
        reduction.apply(models.create("vit", **plans.SIZES, rngs=nnx.Rngs(0)), plan, rngs=nnx.Rngs(0))
    assert time.process_time() - start < 5 and len(str(error.value)) <= LONGEST
