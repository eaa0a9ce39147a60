"""Pareto Testing: the cheapest of many configurations whose risk is bounded with a stated confidence.

After Laufer-Goldshtein et al., "Efficiently Controlling Multiple Risks with Pareto Testing" (ICLR 2023), with one risk:
from one half of the data come estimates of the risks, and with them the Pareto front of cost and risk; on the other
half its configurations are tested in order from the safest on, and the first that fails ends the sequence. That is
fixed-sequence testing, which controls the family-wise error without a correction, because the order is not chosen on
the data that test. So whatever is picked among the configurations that passed, P(its risk > α) ≤ δ.

A loss is 0 or 1 an image; the number of errors in n images is then binomial, and the p-values are exact.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from jaxprune.errors import UserError
from jaxprune.viz.plots.pareto import pareto_front


class Tested(NamedTuple):
    """The test of one configuration.

    Attributes:
      errors: of the images.
      images: that tested.
      p_value: how likely so few errors are if the risk is just above α.
      passed: whether that is at most δ.
      limit: what the risk is at most, with confidence 1 − δ (Clopper and Pearson), of this configuration alone.
    """

    errors: int
    images: int
    p_value: float
    passed: bool
    limit: float


def front(costs: Sequence[float], risks: Sequence[float]) -> list[int]:
    """Returns the configurations that no other one beats in cost and risk, from the safest to the cheapest.

    >>> front([4.0, 2.0, 3.0, 1.0], [0.0, 0.1, 0.2, 0.3])
    [0, 1, 3]

    Args:
      costs: one a configuration.
      risks: estimates of theirs.
    """
    return pareto_front(np.asarray(costs), np.asarray(risks), ("min", "min"))[::-1].tolist()


def p_value(errors: int, images: int, alpha: float) -> float:
    """Returns P(Bin(images, alpha) ≤ errors), the p-value of "the risk is above alpha".

    >>> round(p_value(0, 10, 0.2), 4)  # 0.8 ** 10
    0.1074
    """
    return float(special.bdtr(errors, images, alpha))


def risk_limit(errors: int, images: int, delta: float) -> float:
    """Returns the smallest risk that so few errors refute at level delta: the one-sided limit of Clopper and Pearson.

    >>> round(risk_limit(0, 10, 0.1074), 3)
    0.2
    """
    return 1.0 if errors >= images else float(special.betaincinv(errors + 1, images - errors, 1 - delta))


def fixed_sequence(errors: Iterable[int], images: int, alpha: float, delta: float) -> list[Tested]:
    """Tests configurations in their order until one fails; returns all that were tested, the one that failed last.

    >>> [test.passed for test in fixed_sequence([0, 3, 9, 1], 100, 0.1, 0.1)]
    [True, True, False]

    Args:
      errors: of each configuration in the images; taken one by one, so that none is computed behind the first failure.
      images: that test.
      alpha: the risk that is allowed.
      delta: the probability that is allowed for a configuration to pass whose risk is above that.

    Raises:
      UserError: delta is no probability.
    """
    if not 0 < delta < 1:
        raise UserError(f"delta={delta} is no probability between 0 and 1: use one such as 0.1.")
    found = []
    for count in errors:
        p = p_value(count, images, alpha)
        found.append(Tested(count, images, p, p <= delta, risk_limit(count, images, delta)))
        if not found[-1].passed:
            break
    return found


def fewest_images(alpha: float, delta: float) -> int:
    """Returns how many images have to test for a configuration without any error to pass.

    >>> fewest_images(0.05, 0.1)
    45

    Raises:
      UserError: no number of images shows a risk of 0.
    """
    if not 0 < alpha < 1:
        raise UserError(f"A risk of at most {alpha} cannot be tested by counting errors: allow one between 0 and 1.")
    return int(np.ceil(np.log(delta) / np.log1p(-alpha)))


def choose(
    costs: Sequence[float], first: np.ndarray, second: np.ndarray, alpha: float, delta: float
) -> tuple[int | None, list[int], list[Tested]]:
    """Returns the cheapest configuration that is certified (None: none is), the front, and its tests.

    Args:
      costs: one a configuration.
      first: losses 0 or 1 on the images that make the front, (configurations, images).
      second: on those that test.
      alpha, delta: see `fixed_sequence`.
    """
    order = front(costs, first.mean(1))
    tests = fixed_sequence((int(second[index].sum()) for index in order), second.shape[1], alpha, delta)
    passed = [index for index, test in zip(order, tests, strict=False) if test.passed]
    return (passed[-1] if passed else None), order, tests
