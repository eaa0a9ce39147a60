"""The search for plans: a few of very many are evaluated, most of them on a fraction of the estimation images.

Decisions here use only the estimation images, so the guarantee, which comes from the test images, is not affected.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxprune.measures.intervals import mean_share
from jaxprune.train.progress import progress
from jaxprune.tune.candidates import Candidate
from jaxprune.tune.pareto_testing import p_value

Losses = Callable[[Candidate, int], np.ndarray]  # (candidate, index in SHARES) -> from 0 to 1 per image
Pool = Callable[[tuple[str, ...]], list[Candidate]]  # one method, or two to mix -> plans within the bound

SHARES = (0.25, 0.5, 1.0)  # of the estimation images: a plan is rejected on as few as possible
METHODS = 3  # methods that remain after the first round
SIGNIFICANT = 0.05  # level at which one plan counts as worse than another on the same images
TOO_LARGE = "its risk is significantly above the allowed one"
MIDDLE = 0.75  # fraction of the dense network's cost at which methods are compared


class Rejected(NamedTuple):
    """A plan that the search rejected.

    Attributes:
      plan: the plan.
      share: the share of the images that estimated its risk, an index in `SHARES`.
      why: a risk that is significantly too large, or significantly larger than that of another plan.
    """

    plan: Candidate
    share: int
    why: str


class Searched(NamedTuple):
    """The plans that a search evaluated, each in the order of the search.

    Attributes:
      promising: to be estimated on all images.
      rejected: the others.
    """

    promising: list[Candidate]
    rejected: list[Rejected]


def search(
    methods: Sequence[str],
    pool: Pool,
    losses: Losses,
    dense: float,
    cost: Callable[[Candidate], float],
    *,
    alpha: float,
    limit: int,
) -> Searched:
    """Evaluates plans on some images and returns those to estimate on all, and the others.

    First every method at about the same cost; then the plans of the best three methods and of mixtures of the best two,
    in each family from that cost down to the first hopeless plan, and up to the first that is safe.

    Args:
      methods: names of the methods.
      pool: returns the allowed plans.
      losses: returns the losses of a plan on a share of the images.
      dense: the cost of the dense network.
      cost: returns the cost of a plan.
      alpha: the allowed risk; 1 allows any.
      limit: maximum number of plans, of which there is at least one of each method.
    """
    pools = {method: plans for method in methods if (plans := pool((method,)))}
    by_name: dict[str, Candidate] = {}

    def evaluated(candidate: Candidate) -> np.ndarray:
        if candidate.name not in by_name:
            bar.update(1)
        by_name[candidate.name] = candidate
        return losses(candidate, 0)

    def until(stop: Callable[[np.ndarray, float], bool], plans: Sequence[Candidate]) -> None:
        for plan in plans:
            if (plan.name not in by_name and len(by_name) >= limit) or stop(evaluated(plan), alpha):
                return

    def middle(plans: Sequence[Candidate]) -> Candidate:
        return min(plans, key=lambda plan: abs(cost(plan) - MIDDLE * dense))

    with progress("plans, at most", limit, show=bool(pools), unit="plans") as bar:
        risks = {}
        for method, plans in pools.items():
            plan = middle(plans)
            risks[method] = (evaluated(plan).mean(), cost(plan))
        ranked = sorted(risks, key=lambda method: risks[method])
        mixed = [pool(pair) for pair in (tuple(ranked[:2]), tuple(ranked[1::-1])) if len(set(pair)) == 2]
        groups = [pools[method] for method in ranked[:METHODS]]
        # The most promising come first, because the number is limited.
        for group in [*groups[:2], *mixed, *groups[2:]]:
            for family in dict.fromkeys(candidate.family for candidate in group):
                plans = sorted((c for c in group if c.family == family), key=cost, reverse=True)
                if alpha == 1:
                    until(hopeless, plans[:2])  # under a bound on cost alone, the most expensive plans are the safest
                else:
                    start = plans.index(middle(plans))
                    until(hopeless, plans[start:])
                    until(safe, plans[start::-1])
    return _narrowed(list(by_name.values()), losses, cost, alpha)


def _narrowed(plans: list[Candidate], losses: Losses, cost: Callable, alpha: float) -> Searched:
    """Rejects plans on growing shares of the images."""
    rejected = []
    for share in range(len(SHARES) - 1):
        errors = {plan.name: losses(plan, share) for plan in plans}
        why = {plan.name: TOO_LARGE for plan in plans if hopeless(errors[plan.name], alpha)}
        fit = [plan for plan in plans if plan.name not in why]
        for plan in fit:
            if (rival := _safer(plan, fit, errors, cost)) is not None:
                why[plan.name] = f"{rival.name} costs no more, and its risk is significantly smaller"
        rejected += [Rejected(plan, share, why[plan.name]) for plan in plans if plan.name in why]
        plans = [plan for plan in fit if plan.name not in why]
    return Searched(plans, rejected)


def safe(losses: np.ndarray, alpha: float) -> bool:
    """Whether the risk is significantly below alpha (95 % Wilson interval)."""
    return mean_share(losses).high <= alpha


def hopeless(losses: np.ndarray, alpha: float) -> bool:
    """Whether the risk is significantly above alpha (95 % Wilson interval)."""
    return mean_share(losses).low > alpha


def thinned(order: Sequence[Candidate], risks: Sequence[float], alpha: float, most: int) -> list[Candidate]:
    """Returns at most `most` configurations of a front: the safest, and the cheapest that may satisfy alpha.

    Args:
      order: the front, from the safest to the cheapest.
      risks: their estimated risks.
      alpha: the risk that is allowed.
      most: maximum number.
    """
    hopeful = [candidate for candidate, risk in zip(order, risks, strict=True) if risk <= alpha] or list(order[:1])
    return hopeful if len(hopeful) <= most else [hopeful[0], *hopeful[len(hopeful) - most + 1 :]]


def _safer(
    plan: Candidate, rivals: Sequence[Candidate], losses: Mapping[str, np.ndarray], cost: Callable
) -> Candidate | None:
    """A plan that costs no more and loses significantly less (sign test on the images where they differ), if any."""
    of_plan = losses[plan.name]
    for rival in rivals:
        of_rival = losses[rival.name]
        worse, better = int((of_plan > of_rival).sum()), int((of_rival > of_plan).sum())
        # Of graded losses, many small gains may cost more on a few images.
        is_safer = of_rival.sum() < of_plan.sum()
        if cost(rival) <= cost(plan) and is_safer and p_value(better, worse + better, 0.5) <= SIGNIFICANT:
            return rival
    return None
