"""The choice among tested plans, and the words for it."""

from collections.abc import Sequence

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
    cost = {name: Cost(seconds.median, megabytes) for name, (seconds, megabytes) in timed.items()}
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
    unclear = " Its times and those of dense overlap over the rounds: it may not be faster." * (slowest >= fastest)
    mixed = f" Its time is a mixture: {mixture_text(best)}." if best.members else ""
    return best, (
        f"{abridged(best.name)} is {speed:.2f} times as fast as dense, and {confidence} its risk is at most "
        f"{bound.risk if bound.risk < 1 else test.limit:.3g}: {test.evidence} independent images."
        f"{mixed}{unclear}"
    ), tests  # fmt: skip
