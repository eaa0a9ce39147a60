"""Pareto Testing: the cheapest of many configurations whose risk is bounded with a given confidence.

After Laufer-Goldshtein et al., "Efficiently Controlling Multiple Risks with Pareto Testing" (ICLR 2023), with one risk:
one half of the data estimates the risks and with them the Pareto front of cost and risk; on the other half its
configurations are tested in order, the safest first, until one fails. This fixed-sequence testing controls the
family-wise error rate without a correction, because the order does not depend on the test data. Whichever of the passed
configurations is chosen, P(its risk > α) ≤ δ.

The loss of an image is 0 or 1, so the number of errors in n images is binomial, and the p-values are exact.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from jaxprune.errors import UserError
from jaxprune.report.plots.pareto import pareto_front


class Tested(NamedTuple):
    """The test of one configuration.

    Attributes:
      errors: number of errors.
      images: number of test images.
      p_value: the probability of at most this many errors if the risk is α.
      passed: whether the p-value is at most δ.
      limit: upper bound on the risk; those of a sequence hold together with confidence 1 − δ (`stepwise_limits`), so
        also that of the configuration that is chosen.
    """

    errors: int
    images: int
    p_value: float
    passed: bool
    limit: float


def front(costs: Sequence[float], risks: Sequence[float]) -> list[int]:
    """Returns the Pareto-optimal configurations in cost and risk, from the safest to the cheapest.

    >>> front([4.0, 2.0, 3.0, 1.0], [0.0, 0.1, 0.2, 0.3])
    [0, 1, 3]

    Args:
      costs: one a configuration.
      risks: estimated risks, one per configuration.
    """
    return pareto_front(np.asarray(costs), np.asarray(risks), ("min", "min"))[::-1].tolist()


def p_value(errors: int, images: int, alpha: float) -> float:
    """Returns P(Bin(images, alpha) ≤ errors), the p-value of "the risk is above alpha".

    >>> round(p_value(0, 10, 0.2), 4)  # 0.8 ** 10
    0.1074
    """
    return float(special.bdtr(errors, images, alpha))


def risk_limit(errors: int, images: int, delta: float) -> float:
    """Returns the one-sided upper confidence limit of the risk, at level delta (Clopper and Pearson).

    >>> round(risk_limit(0, 10, 0.1074), 3)
    0.2
    """
    return 1.0 if errors >= images else float(special.betaincinv(errors + 1, images - errors, 1 - delta))


def fixed_sequence(errors: Iterable[int], images: int, alpha: float, delta: float) -> list[Tested]:
    """Tests configurations in order until one fails; returns all tests, including the failed one.

    >>> [test.passed for test in fixed_sequence([0, 3, 9, 1], 100, 0.1, 0.1)]
    [True, True, False]

    Args:
      errors: number of errors of each configuration; consumed lazily, so none is computed after the first failure.
      images: number of test images.
      alpha: the allowed risk.
      delta: the allowed probability that a configuration with a larger risk passes.

    Raises:
      UserError: delta is not a probability.
    """
    if not 0 < delta < 1:
        raise UserError(f"delta={delta} is not a probability between 0 and 1: use one such as 0.1.")
    tests = []
    for count in errors:
        p = p_value(count, images, alpha)
        tests.append(Tested(count, images, p, p <= delta, risk_limit(count, images, delta)))
        if not tests[-1].passed:
            break
    limits = stepwise_limits([test.limit for test in tests], [test.passed for test in tests], alpha)
    return [test._replace(limit=limit) for test, limit in zip(tests, limits, strict=True)]


def stepwise_limits(limits: Sequence[float], passed: Sequence[bool], alpha: float) -> list[float]:
    """Returns limits of the risks of a tested sequence that hold together with the confidence of each (Hsu and Berger).

    Taken from the smallest limit of several, a risk would be understated: with δ = 0.1 the chosen plan could exceed its
    own limit in more than a tenth of all cases. If all plans passed, the largest limit holds for all of them; else α
    does for those that passed, and its own limit for the one that failed.

    >>> stepwise_limits([0.03, 0.06], [True, True], 0.1), stepwise_limits([0.03, 0.12], [True, False], 0.1)
    ([0.06, 0.06], [0.1, 0.12])

    Args:
      limits: of single plans, see `risk_limit`, from the first to the last that was tested.
      passed: whether each passed; only the last may have failed.
      alpha: the allowed risk.
    """
    if all(passed):
        return [max(limits)] * len(limits) if limits else []
    return [alpha if success else limit for limit, success in zip(limits, passed, strict=True)]


def fewest_images(alpha: float, delta: float) -> int:
    """Returns the number of test images with which a configuration without errors passes.

    >>> fewest_images(0.05, 0.1)
    45

    Raises:
      UserError: alpha is 0, which no number of images can show.
    """
    if not 0 < alpha < 1:
        raise UserError(f"A risk of at most {alpha} cannot be tested by counting errors: allow one between 0 and 1.")
    return int(np.ceil(np.log(delta) / np.log1p(-alpha)))


def images_needed(images: int, alpha: float, delta: float) -> str:
    """Returns in a sentence how many test images a bound needs, and how many errors it allows on those there are.

    >>> images_needed(160, 0.05, 0.1)
    'A risk of at most 0.05 with confidence 0.9 needs 45 test images without an error; 160 may have 4.'
    """
    if alpha == 1:
        return f"Any risk is allowed; {images} test images say how large that of the chosen plan is at most."
    passing = (errors for errors in range(images, -1, -1) if p_value(errors, images, alpha) <= delta)
    return (
        f"A risk of at most {alpha:.3g} with confidence {1 - delta:.3g} needs {fewest_images(alpha, delta)} test "
        f"images without an error; {images} may have {next(passing, 0)}."
    )


def choose(
    costs: Sequence[float], first: np.ndarray, second: np.ndarray, alpha: float, delta: float
) -> tuple[int | None, list[int], list[Tested]]:
    """Returns the cheapest certified configuration (None if there is none), the front, and its tests.

    Args:
      costs: one a configuration.
      first: losses, 0 or 1, on the images that determine the front, (configurations, images).
      second: losses on the test images.
      alpha, delta: see `fixed_sequence`.
    """
    order = front(costs, first.mean(1))
    tests = fixed_sequence((int(second[index].sum()) for index in order), second.shape[1], alpha, delta)
    passed = [index for index, test in zip(order, tests, strict=False) if test.passed]
    return (passed[-1] if passed else None), order, tests
