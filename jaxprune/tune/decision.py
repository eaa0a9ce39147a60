"""The choice among tested plans, and the words for it."""

from collections.abc import Mapping, Sequence

from jaxprune.reduction import DENSE
from jaxprune.text import abridged
from jaxprune.tune import pareto_testing
from jaxprune.tune.candidates import Candidate
from jaxprune.tune.cascade_candidates import mixture_text
from jaxprune.tune.cost_table import Cost
from jaxprune.tune.losses import Losses
from jaxprune.tune.pareto_testing import Tested
from jaxprune.tune.requirement import Bound
from jaxprune.tune.tuned import Settings
from jaxprune.tune.whole_networks import Timed


def decision(
    plans: Sequence[Candidate], timed: Timed, losses: Losses, bound: Bound, settings: Settings
) -> tuple[Candidate | None, str, dict[str, Tested]]:
    """Returns the plan (None: dense), why, and the tests.

    Args:
      plans: of the front, from the safest to the cheapest.
    """
    cost = _costs(timed)
    within = bound.against(cost[DENSE])
    if bound.on_cost and within.holds(cost[DENSE], settings.batch_size):
        return None, f"The dense network itself satisfies the bound: {bound}.", {}
    fit = [plan for plan in plans if within.holds(cost[plan.name], settings.batch_size)]
    fit = [plan for plan in fit if bound.of(cost[plan.name]) < bound.of(cost[DENSE])]
    if not fit:
        also = f" and satisfies the bound, {bound}" if bound.on_cost else ""
        return None, f"Nothing beats dense: no plan found is cheaper on this device{also}.", {}
    # For a bound on cost the safest is the best; cheaper plans need no test.
    tried = fit[:1] if bound.on_cost else fit
    sequence = pareto_testing.in_sequence((losses.test(plan, bound, settings.delta) for plan in tried), bound.risk)
    tests = {plan.name: test for plan, test in zip(tried, sequence, strict=False)}
    passed = [plan for plan in tried if plan.name in tests and tests[plan.name].passed]
    confidence = f"with confidence {1 - settings.delta:.3g}"
    if not passed:
        return None, (
            f"Nothing beats dense: {abridged(tried[0].name)}, the safest plan, fails {sequence[0].failure} for a risk "
            f"of at most {bound.risk:.3g} {confidence}."
        ), tests  # fmt: skip
    best = min(passed, key=lambda plan: bound.of(cost[plan.name]))
    test = tests[best.name]
    speed = cost[DENSE].seconds / cost[best.name].seconds
    slowest, fastest = timed[best.name][0].high, timed[DENSE][0].low
    # Of a single round both are NaN.
    unclear = "" if slowest < fastest else " The timing rounds do not show that it is faster."
    bounded = ""
    if bound.on_cost and bound.kind != "speedup":
        best_cost, dense_cost = (bound.measured(cost[name], settings.batch_size) for name in (best.name, DENSE))
        bounded = f" ({bound.kind} {best_cost}, of dense {dense_cost})"
    mixed = f" Its time is a mixture: {mixture_text(best)}." if best.members else ""
    return best, (
        f"{abridged(best.name)} is {speed:.2f} times as fast as dense{bounded}, and {confidence} its risk is at most "
        f"{bound.risk if bound.risk < 1 else test.limit:.3g}: {test.evidence} independent images."
        f"{mixed}{unclear}"
    ), tests  # fmt: skip


def untested(
    plans: Sequence[Candidate],
    front: Sequence[Candidate],
    finalists: Sequence[Candidate],
    timed: Timed,
    tests: Mapping[str, Tested],
    losses: Losses,
    bound: Bound,
    settings: Settings,
) -> dict[str, str]:
    """Returns why plans that were estimated on all images were not tested, by name.

    Args:
      front: those that no other beats.
      finalists: those of the front that were timed, see `decision`.
      tests: of the tested ones.
    """
    cost = _costs(timed)
    within = bound.against(cost[DENSE])
    on_front, last = ({plan.name for plan in group} for group in (front, finalists))

    def why(plan: Candidate) -> str:
        if plan.name not in on_front:
            return "another one costs no more, and its estimated risk is no larger"
        if plan.name not in last and bound.on_cost:
            return "a safer one was found within the bound"
        if plan.name not in last:
            too_risky = losses.estimate(plan).mean() > bound.risk
            return "its estimated risk is above the allowed one" if too_risky else f"most_tested={settings.most_tested}"
        if bound.on_cost and within.holds(cost[DENSE], settings.batch_size):
            return "the dense network satisfies the bound"
        if not within.holds(cost[plan.name], settings.batch_size):
            return "it is measured outside the bound"
        if bound.of(cost[plan.name]) >= bound.of(cost[DENSE]):
            return "it is measured no cheaper than dense"
        return "a safer one is within the bound" if bound.on_cost else "a safer one failed its test"

    return {plan.name: why(plan) for plan in plans if plan.name not in tests}


def _costs(timed: Timed) -> dict[str, Cost]:
    return {name: Cost(seconds.median, megabytes) for name, (seconds, megabytes) in timed.items()}
