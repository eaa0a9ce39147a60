"""Which plans to look at: few of very many, most of them on few images, all on the images that estimate.

Whatever is decided here by those images leaves the guarantee alone, which comes from others.
"""

from collections.abc import Callable, Sequence

import numpy as np

from jaxprune.metrics import wilson_interval
from jaxprune.tune.candidates import Candidate

Losses = Callable[[Candidate, bool], np.ndarray]  # (candidate, whether on all images) -> 0 or 1 an image
Pool = Callable[[tuple[str, ...]], list[Candidate]]  # one method, or two that are mixed -> plans within the bound

METHODS = 3  # that go on after the first round
MIDDLE = 0.75  # of the dense network's cost, at which methods are compared


def search(
    methods: Sequence[str],
    pool: Pool,
    losses: Losses,
    dense: float,
    cost: Callable[[Candidate], float],
    *,
    alpha: float,
    limit: int,
) -> list[Candidate]:
    """Returns the plans that are worth estimating on all images, in the order in which they were looked at.

    First every method at about the same cost; then the plans of the best three methods and of mixtures of the best two,
    from the dearest of a family to the first that is hopeless. What another plan surely beats is left out.

    Args:
      methods: by name.
      pool: the plans that are allowed.
      losses: of a plan.
      dense: cost of the dense network.
      cost: of a plan.
      alpha: the risk that is allowed; 1: any.
      limit: how many plans are looked at.
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
    # What looks best comes first, as there may be too many.
    for group in [*groups[:2], *mixed, *groups[2:]]:
        for family in dict.fromkeys(candidate.family for candidate in group):
            found = sorted((c for c in group if c.family == family), key=cost, reverse=True)
            for number, candidate in enumerate(found):
                # Under a bound on cost alone, what is dearest within it is safest.
                if (candidate.name not in seen and len(seen) >= limit) or (alpha == 1 and number > 1):
                    break
                if hopeless(look(candidate), alpha):
                    break
    left = [candidate for candidate in seen.values() if not hopeless(losses(candidate, False), alpha)]
    return [candidate for candidate in left if not _beaten(candidate, left, losses, cost)]


def hopeless(losses: np.ndarray, alpha: float) -> bool:
    """Whether the risk is above alpha with confidence (the 95 % interval of Wilson)."""
    return wilson_interval(int(losses.sum()), len(losses))[0] > alpha


def thinned(order: Sequence[Candidate], risks: Sequence[float], alpha: float, most: int) -> list[Candidate]:
    """Returns at most so many of a front, from the safest on: that one, and the cheapest that may hold alpha.

    Args:
      order: the front, from the safest to the cheapest.
      risks: estimates of theirs.
      alpha: the risk that is allowed.
      most: how many.
    """
    hopeful = [candidate for candidate, risk in zip(order, risks, strict=True) if risk <= alpha] or list(order[:1])
    return hopeful if len(hopeful) <= most else [hopeful[0], *hopeful[len(hopeful) - most + 1 :]]


def _beaten(candidate: Candidate, others: Sequence[Candidate], losses: Losses, cost: Callable) -> bool:
    """Whether another plan costs no more and errs less on the same images with confidence."""
    own = losses(candidate, False)
    low = wilson_interval(int(own.sum()), len(own))[0]
    for other in others:
        theirs = losses(other, False)
        if cost(other) <= cost(candidate) and wilson_interval(int(theirs.sum()), len(theirs))[1] < low:
            return True
    return False
