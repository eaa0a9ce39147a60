"""Cascades as candidates of a tuning, beside plans and smaller images: lists of networks, with thresholds.

A cascade under thresholds is one more point on the front of cost and risk: estimated on the same images, tested in the
same sequence, so that one δ covers plans, image sizes and every threshold that was tested. Its cost is a mixture: the
time of each of its networks, times the share of the images that reach it.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Real

from jaxprune import dynamic
from jaxprune.dynamic.cascade import Cascade
from jaxprune.dynamic.exit_policy import EVERYBODY, NOBODY, exit_of
from jaxprune.evaluate.contestants import gflops
from jaxprune.open.gallery import with_gallery
from jaxprune.reduction import DENSE
from jaxprune.tune import pareto_testing
from jaxprune.tune.candidates import Candidate
from jaxprune.tune.cascades import configurations
from jaxprune.tune.cost_table import Cost
from jaxprune.tune.requirement import Bound
from jaxprune.tune.tuned import Settings

METHOD = "cascade"
LENGTHS = (2, 3)  # of a cascade
SIZES, PLANS = 3, 2  # of the image sizes and of the plans that cascades are made of
STEPS = 6  # thresholds of a cascade that may be tested


class Exits(NamedTuple):
    """What the networks of a cascade say of images, one row a network.

    Attributes:
      sure: their confidence.
      losses: of leaving there.
    """

    sure: Float[np.ndarray, "m n"]
    losses: Real[np.ndarray, "m n"]

    def under(self, thresholds: Sequence[float]) -> Real[np.ndarray, "n"]:
        """The loss of each image that leaves where it first may."""
        return self.losses[exit_of(self.sure, np.asarray(thresholds)), np.arange(self.sure.shape[1])]

    def reach(self, thresholds: Sequence[float]) -> tuple[float, ...]:
        """The share of the images that reach each network.

        >>> Exits(np.array([[0.9, 0.2, 0.8, 0.7], [1, 1, 1, 1]]), np.zeros((2, 4))).reach((0.75, EVERYBODY))
        (1.0, 0.5)
        """
        leaving = exit_of(self.sure, np.asarray(thresholds))
        return tuple(float((leaving >= member).mean()) for member in range(len(self.sure)))


def mixture(costs: Iterable[Cost], reach: Sequence[float]) -> Cost:
    """Returns the mean cost of a cascade: the seconds of each network times the share that reaches it; the most memory.

    >>> mixture([Cost(1.0, 5.0), Cost(4.0, 9.0)], (1.0, 0.25))
    Cost(seconds=2.0, megabytes=9.0)

    Args:
      costs: of its networks alone, for the same number of images.
      reach: see `Exits.reach`.
    """
    costs = list(costs)
    seconds = sum(cost.seconds * share for cost, share in zip(costs, reach, strict=True))
    return Cost(seconds, max(cost.megabytes for cost in costs))


def mixed_gflops(candidate: Candidate) -> float:
    """Returns the GFLOPs of an image: of a cascade the mean over the images, as in `mixture`."""
    if not candidate.members:
        return gflops(candidate.model)
    return sum(gflops(member.model) * share for member, share in zip(candidate.members, candidate.reach, strict=True))


def mixture_text(candidate: Candidate) -> str:
    """Returns in words which share of the images reaches each network of a cascade."""
    return reach_text(dict(zip((member.name for member in candidate.members), candidate.reach, strict=True)))


def reach_text(reach: Mapping[str, float]) -> str:
    """Returns {network: share of the images that reach it} in words.

    >>> reach_text({"img_size=126": 1.0, "dense": 0.4375})
    '100 % of the images reach img_size=126, 43.8 % dense'
    """
    (first, of_first), *later = ((name, f"{100 * share:.3g} %") for name, share in reach.items())
    return ", ".join([f"{of_first} of the images reach {first}", *(f"{share} {name}" for name, share in later)])


def members_of(
    dense: Any, cost: Cost, sizes: Sequence[Candidate], plans: Sequence[Candidate], risks: Sequence[float]
) -> list[Candidate]:
    """Returns the networks that cascades are made of, by rising cost: the dense one, image sizes, and plans.

    Args:
      dense: the dense network.
      cost: its predicted cost.
      sizes: the network on smaller images.
      plans: under plans.
      risks: their estimated risks: the plans are some of those that no other beats.
    """
    seconds = lambda candidate: candidate.cost.seconds
    cheaper = [plan for plan in plans if seconds(plan) < cost.seconds]
    safety = [risk for plan, risk in zip(plans, risks, strict=True) if seconds(plan) < cost.seconds]
    order = pareto_testing.front([seconds(plan) for plan in cheaper], safety) if cheaper else []
    smaller = sorted((size for size in sizes if seconds(size) < cost.seconds), key=seconds)
    spread = [*_spread(smaller, SIZES), *_spread([cheaper[index] for index in order], PLANS)]
    return sorted([Candidate(DENSE, "", (), 1.0, dense, cost), *spread], key=seconds)


def lists(members: Sequence[Candidate], sides: Sequence[int]) -> Iterator[tuple[Candidate, ...]]:
    """Yields the lists of two and three networks by rising cost whose last reads images of the full size.

    Args:
      members: by rising cost.
      sides: of the images of the dense network.
    """
    for length in LENGTHS:
        for members_of_cascade in itertools.combinations(members, length):
            if members_of_cascade[-1].model.preprocessing.sides == tuple(sides):
                yield members_of_cascade


def candidates(
    members: Sequence[Candidate],
    exits: Callable[[Sequence[Candidate]], Exits],
    dense: Candidate,
    bound: Bound,
    settings: Settings,
) -> list[Candidate]:
    """Returns the most promising cascades, each under a few thresholds, from the safest to the cheapest of each.

    For a bound on risk those that are the cheapest where the estimation images themselves would show the bound, and for
    a bound on cost those of least risk within it.

    Args:
      members: see `members_of`.
      exits: returns what networks say of the estimation images.
      dense: the dense network.
      bound: what is asked for.
      settings: at most `most_tested` cascades are returned.
    """
    of_member = exits(members)
    promising = []
    for members_of_cascade in lists(members, dense.model.preprocessing.sides):
        rows = [members.index(member) for member in members_of_cascade]
        steps = _steps(members_of_cascade, Exits(of_member.sure[rows], of_member.losses[rows]), dense, bound, settings)
        if steps:
            promising.append(steps)
    if bound.on_cost:
        promising.sort(key=lambda steps: (steps[0][1], bound.of(steps[0][0].cost)))
    else:
        promising.sort(key=lambda steps: bound.of(steps[-1][0].cost))
    return [candidate for steps in promising[: settings.most_tested] for candidate, _ in steps]


def _steps(
    members: tuple[Candidate, ...], exits: Exits, dense: Candidate, bound: Bound, settings: Settings
) -> list[tuple[Candidate, float]]:
    """The cascade under thresholds on its own front that may keep the bound, with their risks, the safest first."""
    images, within = exits.sure.shape[1], bound.against(dense.cost)
    steps = []
    for thresholds in configurations(exits.sure):
        reach = exits.reach(thresholds)
        cost = mixture([member.cost for member in members], reach)
        # Where all images leave at one network, it is not a cascade.
        if min(reach) == 1 or min(reach) == 0 or bound.of(cost) >= bound.of(dense.cost):
            continue
        if not within.holds(cost, settings.batch_size):
            continue
        risk = float(exits.under(thresholds).mean())
        if (
            not bound.on_cost
            and not pareto_testing.of_errors(round(risk * images), images, bound.risk, settings.delta).passed
        ):
            continue
        name = name_of([member.name for member in members], thresholds)
        values = tuple(map(float, thresholds))
        kept = members[-1].kept
        candidate = Candidate(name, METHOD, (), kept, None, cost, members=members, thresholds=values, reach=reach)
        steps.append((candidate, risk))
    if not steps:
        return []
    order = pareto_testing.front([bound.of(candidate.cost) for candidate, _ in steps], [risk for _, risk in steps])
    front = [steps[index] for index in order]
    return front[:STEPS] if bound.on_cost else _spread(front, STEPS)


def name_of(members: Sequence[str], thresholds: Sequence[float]) -> str:
    """Returns the name of a cascade: its networks, and the confidences from which images leave.

    >>> name_of(("img_size=126", "dense"), (0.81234, EVERYBODY))
    'img_size=126, then dense (from 0.81234)'

    Args:
      members: names of its networks.
      thresholds: one a network.
    """
    early = ", ".join("nobody" if value >= NOBODY else f"{value:.6g}" for value in thresholds[:-1])
    return f"{', then '.join(members)} (from {early})"


def built(
    candidate: Candidate, passed: Sequence[Candidate], gallery: Float[np.ndarray, "n d"] | None = None
) -> Cascade:
    """Returns the cascade of a candidate as a network, with a dial of certified thresholds that ends with its own.

    The dial starts with all images at the last network if that is the dense one.

    Args:
      passed: all candidates that passed their test, the safest first.
      gallery: features of the gallery, for networks without classes.
    """
    networks = [member.model for member in candidate.members]
    if gallery is not None:
        networks = [with_gallery(network, gallery) for network in networks]
    cascade = dynamic.create("cascade", networks=networks)
    exact = (*[NOBODY] * (len(networks) - 1), EVERYBODY)
    steps = [exact] if candidate.members[-1].name == DENSE else []
    names = [member.name for member in candidate.members]
    alike = [step for step in passed if [member.name for member in step.members] == names]
    slower = [step for step in alike if step.cost.seconds > candidate.cost.seconds]
    cascade.set_dial([*steps, *(step.thresholds for step in slower), candidate.thresholds])
    return cascade


def _spread(sequence: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of a sequence, evenly spaced, with both ends."""
    if len(sequence) <= count:
        return list(sequence)
    return [sequence[index] for index in np.linspace(0, len(sequence) - 1, count).round().astype(int)]
