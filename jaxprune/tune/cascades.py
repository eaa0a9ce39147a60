"""Thresholds of a network with exits, with a guarantee: the cheapest whose risk is bounded with a given confidence.

The thresholds are the configurations of Pareto Testing (`pareto_testing`): one part of the images says which of them
are worth a test, in which order, and the other part tests them. So one δ covers all thresholds that were looked at.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Real

from jaxprune.dynamic.exit_policy import DVT_RATIOS, NOBODY, exit_of, geometric_shares, operate, thresholds_of_shares
from jaxprune.errors import UserError
from jaxprune.ops.host_random import host_generator
from jaxprune.tune.pareto_testing import Tested, choose, fewest_images

_QUANTILES = 9  # of the confidences of an exit, combined over the exits


class Certified(NamedTuple):
    """Thresholds that are certified, or those that send every image to the last exit.

    Attributes:
      thresholds: one an exit.
      test: their test; None if nothing could be certified.
      cost: mean cost of the test images.
      tested: number of thresholds tested.
    """

    thresholds: Float[np.ndarray, "m"]
    test: Tested | None
    cost: float
    tested: int


def certified_thresholds(
    confidence: Float[np.ndarray, "m n"],
    errors: Bool[np.ndarray, "m n"],
    costs: Real[np.ndarray, "m"],
    *,
    alpha: float,
    delta: float = 0.1,
    seed: int = 0,
) -> Certified:
    """Returns the cheapest thresholds with P(risk > alpha) ≤ delta, on images from the same distribution.

    A random half of the images orders the thresholds, and the other half tests them.

    >>> rng = np.random.default_rng(0)
    >>> sure = np.stack([rng.random(400), np.ones(400)])
    >>> wrong = np.stack([sure[0] < 0.5, np.zeros(400, bool)])
    >>> certified = certified_thresholds(sure, wrong, np.array([1.0, 4.0]), alpha=0.1)
    >>> bool(certified.test.passed), certified.cost < 2.7
    (True, True)

    Args:
      confidence: of m exits for n images, such as `dynamic.confidence`.
      errors: whether leaving at each exit is an error: another class than that of the dense network, or a wrong one.
      costs: cumulative, of leaving at each exit.
      alpha: the largest risk, the share of errors.
      delta: the allowed probability of a larger risk.
      seed: of the halves.

    Raises:
      UserError: the arrays do not fit, or there are too few images for any certificate.
    """
    path, safest, tested = _tested(confidence, errors, costs, alpha, delta, seed)
    return path[-1] if path else Certified(safest.thresholds, None, safest.cost, tested)


def certified_path(
    confidence: Float[np.ndarray, "m n"],
    errors: Bool[np.ndarray, "m n"],
    costs: Real[np.ndarray, "m"],
    *,
    alpha: float,
    delta: float = 0.1,
    seed: int = 0,
) -> list[Certified]:
    """Returns all certified thresholds on the front of cost and risk, the safest first; [] if there are none.

    One δ covers all of them: with probability 1 - delta none has a risk above alpha, so that a server may move along
    them at any time. The last one is what `certified_thresholds` returns.

    >>> rng = np.random.default_rng(0)
    >>> sure = np.stack([rng.random(400), np.ones(400)])
    >>> wrong = np.stack([sure[0] < 0.5, np.zeros(400, bool)])
    >>> path = certified_path(sure, wrong, np.array([1.0, 4.0]), alpha=0.1)
    >>> len(path) > 1, path[0].cost > path[-1].cost
    (True, True)

    Args:
      confidence, errors, costs, alpha, delta, seed: see `certified_thresholds`.

    Raises:
      UserError: as for `certified_thresholds`.
    """
    return _tested(confidence, errors, costs, alpha, delta, seed)[0]


def _tested(
    confidence: np.ndarray, errors: np.ndarray, costs: Real[np.ndarray, "m"], alpha: float, delta: float, seed: int
) -> tuple[list[Certified], Certified, int]:
    """The thresholds that passed, those that send every image to the last exit, and how many were tested."""
    if confidence.shape != errors.shape or confidence.shape[:1] != np.shape(costs):
        raise UserError(
            f"confidence {confidence.shape}, errors {errors.shape} and costs {np.shape(costs)} do not fit: they are of "
            "m exits for n images, (m, n), and (m,)."
        )
    count, fewest = confidence.shape[1] // 2, fewest_images(alpha, delta)
    if count < fewest:
        raise UserError(
            f"{confidence.shape[1]} images are too few: half of them test, and to show a risk of at most {alpha:.3g} "
            f"with confidence {1 - delta:.3g} takes {fewest} test images without an error."
        )
    order = host_generator(seed).permutation(confidence.shape[1])
    first, second = order[count:], order[:count]
    family = configurations(confidence[:, first])
    losses = np.stack([_losses(values, confidence, errors) for values in family])
    expected = [operate(confidence[:, first], values, costs).cost for values in family]
    _, ranks, tests = choose(expected, losses[:, first], losses[:, second], alpha, delta)

    def certified(index: int, test: Tested | None) -> Certified:
        cost = operate(confidence[:, second], family[index], costs).cost
        return Certified(family[index], test, cost, len(tests))

    path = [certified(index, test) for index, test in zip(ranks, tests, strict=False) if test.passed]
    return path, certified(0, None), len(tests)


def _losses(thresholds: np.ndarray, confidence: np.ndarray, errors: np.ndarray) -> Bool[np.ndarray, "n"]:
    return errors[exit_of(confidence, thresholds), np.arange(errors.shape[1])]


def configurations(confidence: Float[np.ndarray, "m n"]) -> list[np.ndarray]:
    """Returns thresholds to choose from: nobody leaves early, the published family, and a grid of quantiles.

    >>> len(configurations(np.array([[0.5, 0.9], [0.7, 0.8]]))), configurations(np.ones((2, 3)))[0].tolist()
    (10, [100000000.0, -100000000.0])

    Args:
      confidence: of m exits for the images that choose.
    """
    exits = len(confidence)
    family: list[Sequence[float] | np.ndarray] = [[NOBODY] * (exits - 1) + [-NOBODY]]
    family += [thresholds_of_shares(confidence, geometric_shares(exits, q)) for q in DVT_RATIOS]
    grids = [np.quantile(values, np.linspace(0, 1, _QUANTILES)) for values in confidence[:-1]]
    grids = [np.append(values, NOBODY) for values in grids]
    family += [[*values, -NOBODY] for values in np.array(np.meshgrid(*grids)).reshape(exits - 1, -1).T]
    return list(np.unique(np.array(family), axis=0)[::-1])
