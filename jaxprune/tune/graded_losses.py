"""Tests of a mean of losses between 0 and 1, such as shares of pixels: p-values and upper limits by betting.

After Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (JRSS B, 2024): a gambler who
bets a share c of what he has on every image multiplies it by 1 + c (α − loss) / (1 − α). If the mean loss is α or more,
that does not grow on average, nor does the mean over several gamblers, so 1 / (what they have in the end) is a p-value
(Markov), whatever the losses look like within [0, 1]. It uses that graded losses vary little: where none exceeds a
tenth, far fewer images do than by counting errors or by Hoeffding's and Bentkus' inequalities, which only see the mean.

The shares do not depend on the losses. So the p-value depends neither on the order of the images nor falls where a loss
rises.
"""

import numpy as np
import scipy
from jaxtyping import Real

from jaxprune.errors import UserError

# The first gambler bets everything, which is best where losses vary less than their mean lies below α.
SHARES = np.array([1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32])
WEIGHTS = np.array([0.8, 0.04, 0.04, 0.04, 0.04, 0.04])
_HALVINGS = 40  # of an interval, to twelve digits


def p_value(losses: Real[np.ndarray, "n"], alpha: float) -> float:
    """Returns a p-value of "the mean loss is alpha or more", for independent losses in [0, 1].

    >>> round(p_value(np.full(50, 0.02), 0.1), 4), round((0.9 / 0.98) ** 50 / 0.8, 4)  # the latter of the first gambler
    (0.0175, 0.0177)

    Args:
      losses: one an image.
      alpha: the mean loss to be excluded.

    Raises:
      UserError: there are no losses, or some are outside [0, 1] or no numbers.
    """
    losses = np.asarray(losses, np.float64)
    if losses.ndim != 1 or not losses.size:
        raise UserError(f"losses of shape {losses.shape} cannot be tested: give one number an image, (n,).")
    if not ((losses >= 0) & (losses <= 1)).all():
        wrong = losses[~((losses >= 0) & (losses <= 1))][0]
        raise UserError(f"A loss of {wrong:g} is not in [0, 1], for which the test holds: clip or rescale the losses.")
    if not 0 < alpha < 1:
        return 1.0 if alpha <= 0 else float(losses.min() == 1)
    with np.errstate(divide="ignore"):
        factors = np.log1p(SHARES[:, None] * (alpha - losses) / (1 - alpha))
    return float(min(np.exp(-scipy.special.logsumexp(factors.sum(1), b=WEIGHTS)), 1.0))


def risk_limit(losses: Real[np.ndarray, "n"], delta: float) -> float:
    """Returns an upper confidence limit of the mean loss, at level delta: the alpha at which `p_value` is delta.

    >>> losses = np.full(50, 0.02)
    >>> round(risk_limit(losses, p_value(losses, 0.1)), 6)
    0.1

    Args:
      losses: see `p_value`.
      delta: the allowed probability that the mean loss is larger.
    """
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if p_value(losses, middle) <= delta else (middle, high)
    return high


def fewest_images(alpha: float, delta: float) -> int:
    """Returns the number of images without any loss that show a mean loss below alpha at level delta.

    >>> fewest_images(0.05, 0.1)
    49
    """
    count = 1
    while p_value(np.zeros(count), alpha) > delta:
        count += max(count // 100, 1)
    while count > 1 and p_value(np.zeros(count - 1), alpha) <= delta:
        count -= 1
    return count


def largest_equal_loss(images: int, alpha: float, delta: float) -> float:
    """Returns the loss that all images may have to show a mean loss below alpha at level delta; 0 if none may.

    >>> round(largest_equal_loss(160, 0.05, 0.1), 4)
    0.0351
    """
    low, high = 0.0, alpha
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(np.full(images, middle), alpha) <= delta else (low, middle)
    return low
