"""Pareto Testing: the cheapest of many configurations whose risk is bounded with a given confidence.

After Laufer-Goldshtein et al., "Efficiently Controlling Multiple Risks with Pareto Testing" (ICLR 2023), with one risk:
one half of the data estimates the risks and with them the Pareto front of cost and risk; on the other half its
configurations are tested in order, the safest first, until one fails. This fixed-sequence testing controls the
family-wise error rate without a correction, because the order does not depend on the test data. Whichever of the passed
configurations is chosen, P(its risk > α) ≤ δ.

Where the loss of an image is 0 or 1, the number of errors in n images is binomial, and the p-values are exact. Graded
losses in [0, 1], such as shares of pixels, have those of `graded_losses`. Which of them holds is a property of the loss
and not of the numbers found, or the choice itself could err.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from jaxprune.errors import UserError
from jaxprune.report.plots.pareto import pareto_front
from jaxprune.tune import graded_losses


class Tested(NamedTuple):
    """The test of one configuration.

    Attributes:
      errors: number of errors; of graded losses their sum.
      images: number of test images.
      p_value: the probability of at most this many errors if the risk is α; of graded losses an upper bound on the
        probability of so much evidence against it.
      passed: whether the p-value is at most δ.
      limit: upper bound on the risk; those of a sequence hold together with confidence 1 − δ (`stepwise_limits`), so
        also that of the configuration that is chosen.
      graded: whether losses are graded.
    """

    errors: float
    images: int
    p_value: float
    passed: bool
    limit: float
    graded: bool = False

    @property
    def text(self) -> str:
        """Errors and images, such as "5 of 200", or "0.031 over 200" of graded losses."""
        if self.graded:
            return f"{self.errors / self.images:.3g} over {self.images}"
        return f"{self.errors} of {self.images}"

    @property
    def evidence(self) -> str:
        """The same before the word "images" in the reason of a choice."""
        return f"a mean loss of {self.text}" if self.graded else f"{self.errors} errors in {self.images}"

    @property
    def failure(self) -> str:
        """The same where a configuration fails, in the middle of a sentence."""
        return f"with {self.evidence} images, too much" if self.graded else f"on {self.text} images, too many"


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
    return float(scipy.special.bdtr(errors, images, alpha))


def risk_limit(errors: int, images: int, delta: float) -> float:
    """Returns the one-sided upper confidence limit of the risk, at level delta (Clopper and Pearson).

    >>> round(risk_limit(0, 10, 0.1074), 3)
    0.2
    """
    return 1.0 if errors >= images else float(scipy.special.betaincinv(errors + 1, images - errors, 1 - delta))


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
    return in_sequence((of_errors(count, images, alpha, delta) for count in errors), alpha)


def in_sequence(tests: Iterable[Tested], alpha: float) -> list[Tested]:
    """Returns the tests of a sequence until one fails, including the failed one, with limits that hold together.

    Args:
      tests: of single configurations, in order; consumed lazily.
      alpha: the allowed risk.
    """
    done = []
    for test in tests:
        done.append(test)
        if not test.passed:
            break
    limits = stepwise_limits([test.limit for test in done], [test.passed for test in done], alpha)
    return [test._replace(limit=limit) for test, limit in zip(done, limits, strict=True)]


def of_errors(errors: int, images: int, alpha: float, delta: float) -> Tested:
    """Returns the test of a single configuration by its number of errors; see `fixed_sequence`."""
    _require_probability(delta)
    p = p_value(errors, images, alpha)
    return Tested(errors, images, p, p <= delta or alpha >= 1, risk_limit(errors, images, delta))


def of_losses(losses: np.ndarray, alpha: float, delta: float, *, graded: bool) -> Tested:
    """Returns the test of a single configuration by its losses, one an image.

    >>> of_losses(np.full(160, 0.03), 0.05, 0.1, graded=True).passed
    True
    >>> of_losses(np.arange(160) < 5, 0.05, 0.1, graded=False).passed  # .031 too, but all or nothing
    False

    Args:
      losses: in [0, 1], (n,).
      alpha, delta: see `fixed_sequence`.
      graded: whether losses are graded; else they are 0 or 1.
    """
    if not graded:
        return of_errors(int(losses.sum()), len(losses), alpha, delta)
    _require_probability(delta)
    p = graded_losses.p_value(losses, alpha)
    limit = graded_losses.risk_limit(losses, delta)
    return Tested(float(losses.sum()), len(losses), p, p <= delta or alpha >= 1, limit, graded=True)


def _require_probability(delta: float) -> None:
    if not 0 < delta < 1:
        raise UserError(f"delta={delta} is not a probability between 0 and 1: use one such as 0.1.")


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


def fewest_images(alpha: float, delta: float, *, graded: bool = False) -> int:
    """Returns the number of test images with which a configuration without errors passes.

    >>> fewest_images(0.05, 0.1), fewest_images(0.05, 0.1, graded=True)
    (45, 49)

    Args:
      alpha, delta: see `fixed_sequence`.
      graded: whether losses are graded.

    Raises:
      UserError: alpha is 0, which no number of images can show.
    """
    if not 0 < alpha < 1:
        raise UserError(f"A risk of at most {alpha} cannot be tested by counting errors: allow one between 0 and 1.")
    if graded:
        return graded_losses.fewest_images(alpha, delta)
    return int(np.ceil(np.log(delta) / np.log1p(-alpha)))


def images_needed(images: int, alpha: float, delta: float, *, graded: bool = False) -> str:
    """Returns in a sentence how many test images a bound needs, and what losses it allows on those there are.

    >>> images_needed(160, 0.05, 0.1)
    'A risk of at most 0.05 with confidence 0.9 needs 45 test images without an error; 160 may have 4.'
    """
    if alpha == 1:
        return f"Any risk is allowed; {images} test images say how large that of the chosen plan is at most."
    fewest = fewest_images(alpha, delta, graded=graded)
    needs = f"A risk of at most {alpha:.3g} with confidence {1 - delta:.3g} needs {fewest} test images without"
    if graded:
        return f"{needs} a loss; {images} may lose {graded_losses.largest_equal_loss(images, alpha, delta):.3g} each."
    passing = (errors for errors in range(images, -1, -1) if p_value(errors, images, alpha) <= delta)
    return f"{needs} an error; {images} may have {next(passing, 0)}."


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
