"""The search for plans: a few of very many are evaluated, most of them on a fraction of the estimation images.

Decisions here use only the estimation images, so the guarantee, which comes from the test images, is not affected.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxprune.metrics import wilson_interval
from jaxprune.tune.candidates import Candidate
from jaxprune.tune.pareto_testing import p_value

Losses = Callable[[Candidate, bool], np.ndarray]  # (candidate, whether on all images) -> 0 or 1 per image
Pool = Callable[[tuple[str, ...]], list[Candidate]]  # one method, or two to mix -> plans within the bound

METHODS = 3  # methods that remain after the first round
SIGNIFICANT = 0.05  # level at which one plan counts as worse than another on the same images
MIDDLE = 0.75  # fraction of the dense network's cost at which methods are compared


class Searched(NamedTuple):
    """The plans that a search evaluated, each in the order of the search.

    Attributes:
      promising: to be estimated on all images.
      rejected: with a risk that is significantly too large, or significantly worse than another plan.
    """

    promising: list[Candidate]
    rejected: list[Candidate]


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
    from the most expensive of a family to the first hopeless one.

    Args:
      methods: names of the methods.
      pool: returns the allowed plans.
      losses: returns the losses of a plan.
      dense: the cost of the dense network.
      cost: returns the cost of a plan.
      alpha: the allowed risk; 1 allows any.
      limit: maximum number of plans.
    """
    own = {method: found for method in methods if (found := pool((method,)))}
    seen: dict[str, Candidate] = {}

    def look(candidate: Candidate) -> np.ndarray:
        seen[candidate.name] = candidate
        return losses(candidate, False)

    risks = {}
    for method, found in own.items():
        middle = min(found, key=lambda candidate: abs(cost(candidate) - MIDDLE * dense))
        risks[method] = (look(middle).mean(), cost(middle))
    ranked = sorted(risks, key=lambda method: risks[method])
    mixed = [pool(pair) for pair in (tuple(ranked[:2]), tuple(ranked[1::-1])) if len(set(pair)) == 2]
    groups = [own[method] for method in ranked[:METHODS]]
    # The most promising come first, because the number is limited.
    for group in [*groups[:2], *mixed, *groups[2:]]:
        for family in dict.fromkeys(candidate.family for candidate in group):
            found = sorted((c for c in group if c.family == family), key=cost, reverse=True)
            for number, candidate in enumerate(found):
                # Under a bound on cost alone, the most expensive plan within it is the safest.
                if (candidate.name not in seen and len(seen) >= limit) or (alpha == 1 and number > 1):
                    break
                if hopeless(look(candidate), alpha):
                    break
    left = [candidate for candidate in seen.values() if not hopeless(losses(candidate, False), alpha)]
    left = [candidate for candidate in left if not _beaten(candidate, left, losses, cost)]
    kept = {candidate.name for candidate in left}
    return Searched(left, [candidate for candidate in seen.values() if candidate.name not in kept])


def hopeless(losses: np.ndarray, alpha: float) -> bool:
    """Whether the risk is significantly above alpha (95 % Wilson interval)."""
    return wilson_interval(int(losses.sum()), len(losses))[0] > alpha


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


def _beaten(candidate: Candidate, others: Sequence[Candidate], losses: Losses, cost: Callable) -> bool:
    """Whether another plan costs no more and errs significantly less (sign test on the images where they differ)."""
    own = losses(candidate, False).astype(bool)
    for other in others:
        theirs = losses(other, False).astype(bool)
        worse, better = int((own & ~theirs).sum()), int((theirs & ~own).sum())
        if cost(other) <= cost(candidate) and p_value(better, worse + better, 0.5) <= SIGNIFICANT:
            return True
    return False
