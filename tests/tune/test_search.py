"""Which plans are looked at, on a device and with risks that are made up."""

import numpy as np
import pytest

from jaxprune.errors import UserError
from jaxprune.train import progress
from jaxprune.tune.candidates import Candidate
from jaxprune.tune.cost_table import Cost
from jaxprune.tune.pareto_testing import front
from jaxprune.tune.requirement import Bound
from jaxprune.tune.search import TOO_LARGE, hopeless, search, thinned
from jaxprune.tune.tuned import Settings

# How much riskier than the best a method is, and how much dearer.
METHODS = {"merge": (0.5, 0.05), "drop": (1.0, 0.0), "mean": (2.0, 0.1), "random": (3.0, 0.0), "worst": (6.0, 0.3)}
KEPT = (0.8, 0.65, 0.5, 0.35, 0.2)
COST = lambda candidate: candidate.cost.seconds


def made(method, places, kept):
    first, *rest = method.split("+")
    factor, more = METHODS[first]
    if rest:  # mixtures are a little better than their first method
        factor, more = 0.9 * factor, more / 2
    spread = 1.3 if len(places) > 3 else 1.0  # more places: safer and dearer
    name = f"{method} {places} {kept}"
    risk = min(factor * (1 - kept) ** 2 / 2 / spread, 1.0)
    return Candidate(name, method, places, risk, None, Cost((0.3 + 0.7 * kept + more) * spread**0.2, 0.0))


def pool(methods):
    plans = [made("+".join(methods), places, kept) for places in ((3, 6, 9), (2, 4, 6, 8)) for kept in KEPT]
    return [plan for plan in plans if COST(plan) < 1.0]


@pytest.fixture
def losses():
    difficulty, counted = np.random.default_rng(0).uniform(size=800), []

    def of(candidate, share):
        counted.append((candidate.name, share))
        return difficulty[: (200, 400, 800)[share]] < candidate.kept  # its risk, see `made`

    of.counted = counted
    return of


def test_the_best_plan_is_that_of_the_exhaustive_search(losses):
    alpha = 0.1
    found, rejected = search(tuple(METHODS), pool, losses, 1.0, COST, alpha=alpha, limit=30)
    everything = [plan for method in METHODS for plan in pool((method,))]
    cheapest = lambda plans: min(COST(plan) for plan in plans if losses(plan, 2).mean() <= alpha)
    assert cheapest(found) <= 1.05 * cheapest(everything)
    looked = {name for name, share in losses.counted if share == 0}
    assert len(looked) <= 30 < len(everything) and not any("worst" in plan.name for plan in found)
    assert any("+" in name for name in looked)
    assert looked == {plan.name for plan in found} | {plan.name for plan, *_ in rejected}
    assert any("worst" in plan.name for plan, *_ in rejected)
    assert all(why == TOO_LARGE or "costs no more" in why for *_, why in rejected)


def test_no_more_plans_are_looked_at_than_the_limit(losses):
    search(tuple(METHODS), pool, losses, 1.0, COST, alpha=0.1, limit=8)
    assert len({name for name, _ in losses.counted}) <= 8


def test_what_is_left_is_said_while_plans_are_tried(losses, monkeypatch, caplog):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    with caplog.at_level("INFO", logger="jaxprune"):
        search(tuple(METHODS), pool, losses, 1.0, COST, alpha=0.1, limit=8)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 8
    assert lines[0].startswith("plans, at most: step 1 of 8") and lines[-1].startswith("plans, at most: step 8 of 8")


def test_a_family_ends_at_the_first_plan_that_is_hopeless(losses):
    search(("drop",), pool, losses, 1.0, COST, alpha=0.05, limit=30)
    looked = [name for name in dict.fromkeys(name for name, _ in losses.counted) if "(3, 6, 9)" in name]
    assert not any("0.2" in name.rpartition(" ")[2] for name in looked)


def test_a_plan_that_is_safe_makes_more_expensive_ones_unnecessary(losses):
    search(("drop",), pool, losses, 1.0, COST, alpha=0.2, limit=30)
    looked = {name.rpartition(" ")[2] for name, _ in losses.counted}
    assert "0.8" not in looked and {"0.65", "0.5"} <= looked  # their risks are 0.06 and 0.125
    losses.counted.clear()
    search(("drop",), pool, losses, 1.0, COST, alpha=0.03, limit=30)
    assert "0.8" in {name.rpartition(" ")[2] for name, _ in losses.counted}


def test_under_a_bound_on_cost_alone_the_dearest_of_a_family_is_enough(losses):
    within = lambda methods: [plan for plan in pool(methods) if COST(plan) < 0.7]
    search(("drop", "merge"), within, losses, 1.0, COST, alpha=1.0, limit=30)
    families = {name.rpartition(" ")[0] for name, _ in losses.counted}
    assert len({name for name, _ in losses.counted}) <= 2 * len(families) + 2  # and the two that compare methods


def test_nothing_is_found_where_no_plan_is_allowed(losses):
    assert search(("drop",), lambda methods: [], losses, 1.0, COST, alpha=0.1, limit=30) == ([], [])


def test_hopeless_is_a_risk_above_alpha_beyond_chance():
    assert hopeless(np.repeat([1, 0], [20, 80]), 0.1) and not hopeless(np.repeat([1, 0], [13, 87]), 0.1)


def test_a_long_front_keeps_its_safest_plan_and_the_cheapest_hopeful_ones():
    order = [made("drop", (3, 6, 9), kept) for kept in KEPT]
    risks = [plan.kept for plan in order]  # 0.02, 0.06, 0.125, 0.21, 0.32
    assert front([COST(plan) for plan in order], risks) == [0, 1, 2, 3, 4]
    assert thinned(order, risks, 0.22, 3) == [order[0], order[2], order[3]]
    assert thinned(order, risks, 0.22, 9) == order[:4]
    assert thinned(order, risks, 0.01, 3) == order[:1] and thinned([], [], 0.1, 3) == []


def test_bounds_hold_or_do_not():
    cost = Cost(0.02, 100.0)
    assert Bound("latency", 20.0).holds(cost, 8) and not Bound("latency", 19.0).holds(cost, 8)
    assert Bound("latency", 19.0).holds(cost, 8, slack=0.06)
    assert Bound("throughput", 400.0).holds(cost, 8) and not Bound("throughput", 401.0).holds(cost, 8)
    assert Bound("memory", 100.0).holds(cost, 8) and not Bound("memory", 99.0).holds(cost, 8)
    assert Bound("accuracy", 0.02).risk == 0.02 and Bound("agreement", 0.97).risk == 0.03
    twice = Bound("speedup", 2.0)
    assert twice.counts == "agreement" and Bound("accuracy", 0.02).counts == "accuracy"
    assert twice._replace(error="accuracy").against(cost).counts == "accuracy"
    assert twice.against(Cost(0.05, 0.0)).holds(cost, 8) and not twice.against(Cost(0.03, 0.0)).holds(cost, 8)
    assert twice.on_cost and twice.risk == 1.0 and str(twice) == "speedup at least 2 times the speed of dense"
    assert Bound("latency", 5.0).against(cost) == Bound("latency", 5.0)
    assert Bound("latency", 5.0).risk == 1.0 and Bound("latency", 5.0).of(cost) == 0.02
    assert Bound("memory", 5.0).of(cost) == 100.0


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (Bound("speed", 1.0), "Unknown bound"),
        (Bound("agreement", 95.0), "is not a fraction"),
        (Bound("accuracy", 0.0), "is not a fraction"),
        (Bound("latency", 0.0), "above 0"),
        (Bound("speedup", 1.0), "more than 1, such as 2"),
        (Bound("latency", 5.0, alpha=1.5), "alpha=1.5"),
        (Bound("latency", 5.0, alpha=0.0), "alpha=0.0 is not a risk that images can show"),
        (Bound("agreement", 0.9, alpha=0.1), "leave alpha"),
        (Bound("latency", 5.0, error="speed"), "Unknown error of a bound"),
        (Bound("agreement", 0.9, error="accuracy"), "leave error=accuracy out"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(bound, words):
    with pytest.raises(UserError, match=words):
        bound.check()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"most_tested": 0}, "most_tested=0 must be a whole number of 1 or more"),
        ({"methods": "topk"}, "methods='topk' is a single text: give a tuple"),
        ({"places": (3,)}, r"places=\(3,\) must be tuples of blocks"),
        ({"rounds": 0}, "rounds=0 must be a whole number of 1 or more"),
        ({"kept": 0.5}, r"kept=0.5 must be finite numbers in \(0, 1\]"),
        ({"delta": 1}, r"delta=1 must be a finite number in \(0, 1\)"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        Settings(**settings)
