"""When an image leaves a network with several exits: confidence, thresholds for a budget, and what they cost.

The rule of MSDNet (Huang et al., ICLR 2018), DVT (Wang et al., NeurIPS 2021) and Dynamic Perceiver (Han et al., ICCV
2023): an image leaves at the first exit whose confidence reaches the exit's threshold. Arrays are NumPy's, on the host.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int, Real

from jaxprune.errors import UserError, unknown

NOBODY, EVERYBODY = 1e8, -1e8  # thresholds that none and all reach


def max_softmax(logits: Float[np.ndarray, "m n c"]) -> Float[np.ndarray, "m n"]:
    """The largest probability."""
    return scipy.special.softmax(logits, axis=-1).max(-1)


def margin(logits: Float[np.ndarray, "m n c"]) -> Float[np.ndarray, "m n"]:
    """The largest probability minus the second."""
    least, most = np.moveaxis(np.partition(scipy.special.softmax(logits, axis=-1), -2, axis=-1)[..., -2:], -1, 0)
    return most - least


def certainty(logits: Float[np.ndarray, "m n c"]) -> Float[np.ndarray, "m n"]:
    """One minus the entropy as a share of its largest value."""
    logs = scipy.special.log_softmax(logits, axis=-1)
    return 1 + (np.exp(logs) * logs).sum(-1) / np.log(logits.shape[-1])


def agreement(logits: Float[np.ndarray, "m n c"]) -> Float[np.ndarray, "m n"]:
    """The largest probability where the exit before predicts the same class, else 0; at the first exit 0."""
    classes = logits.argmax(-1)
    same = np.concatenate([np.zeros_like(classes[:1], bool), classes[1:] == classes[:-1]])
    return np.where(same, max_softmax(logits), 0)


CONFIDENCES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "max_softmax": max_softmax,
    "margin": margin,
    "certainty": certainty,
    "agreement": agreement,
}


def confidence(logits: Float[np.ndarray, "m n c"], rule: str = "max_softmax") -> Float[np.ndarray, "m n"]:
    """Returns how sure each of m exits is of each of n images.

    >>> confidence(np.log([[[0.75, 0.25]], [[0.5, 0.5]]])).round(2).tolist()
    [[0.75], [0.5]]

    Args:
      logits: of all exits, the first exit first.
      rule: one of `CONFIDENCES`.

    Raises:
      UserError: there is no such rule, or a single class.
    """
    if rule not in CONFIDENCES:
        raise unknown("confidence", rule, CONFIDENCES)
    if np.shape(logits)[-1] < 2:
        raise UserError("Logits of a single class leave nothing to be sure of: give those of two or more classes.")
    return CONFIDENCES[rule](np.asarray(logits))


def exit_of(confidence: Float[np.ndarray, "m n"], thresholds: Float[np.ndarray, "m"]) -> Int[np.ndarray, "n"]:
    """Returns the exit, from 0, where each image leaves: the first that is as sure as its threshold, else the last.

    >>> exit_of(np.array([[0.9, 0.4], [0.9, 0.6]]), np.array([0.8, EVERYBODY])).tolist()
    [0, 1]
    >>> exit_of(np.array([[0.5, 0.95], [0.6, 0.95]]), np.array([0.9, 0.9])).tolist()
    [1, 0]
    """
    leaves = np.asarray(confidence) >= np.asarray(thresholds)[:, None]
    leaves[-1] = True
    return leaves.argmax(0).astype(np.int32)


def thresholds_of_shares(
    confidence: Float[np.ndarray, "m n"], shares: Sequence[float] | np.ndarray
) -> Float[np.ndarray, "m"]:
    """Returns the thresholds at which wanted shares of the images leave at each exit, as the published code does.

    Of the images that are left, the threshold of an exit is the confidence of rank floor(n · share), a product in
    float32; all images that reach it leave, ties together. An exit with share 0, or with too few images, has `NOBODY`;
    the last has `EVERYBODY`.

    >>> thresholds_of_shares(np.array([[0.9, 0.5, 0.7, 0.6], [0.9, 0.8, 0.9, 0.8]]), (0.5, 0.5)).tolist()
    [0.7, -100000000.0]

    Args:
      confidence: of all exits for n held-out images.
      shares: one an exit.

    Raises:
      UserError: there is not one share an exit.
    """
    exits, count = confidence.shape
    if len(shares) != exits:
        raise UserError(f"{len(shares)} shares {tuple(shares)} for {exits} exits: give one an exit.")
    counts = np.floor(np.float32(count) * np.asarray(shares, np.float32)).astype(int)
    left, thresholds = np.ones(count, bool), np.full(exits, NOBODY)
    thresholds[-1] = EVERYBODY
    for exit, (values, leaving) in enumerate(zip(confidence[:-1], counts[:-1], strict=True)):
        waiting = np.sort(values[left])[::-1]
        if 0 < leaving <= len(waiting):
            thresholds[exit] = waiting[leaving - 1]
            left &= values < thresholds[exit]
    return thresholds


def geometric_shares(exits: int, q: float) -> Float[np.ndarray, "m"]:
    """Returns shares proportional to q^k at exit k = 1, 2, … (MSDNet, DVT).

    >>> geometric_shares(3, 0.5).round(3).tolist()
    [0.571, 0.286, 0.143]
    """
    powers = float(q) ** np.arange(1, exits + 1)
    return powers / powers.sum()


def perceiver_shares(exits: int, q: float, factors: Sequence[float] = (0.85, 1.0, 0.5)) -> Float[np.ndarray, "m"]:
    """Returns the shares of Dynamic Perceiver: geometric ones, of which the first exits get a factor in turn.

    After each factor the later exits are rescaled, so that the shares sum to 1.
    """
    shares = geometric_shares(exits, q)
    for exit, factor in enumerate(factors[: exits - 1]):
        shares[exit] *= factor
        later = shares[exit + 1 :]
        later *= (1 - shares[: exit + 1].sum()) / later.sum()
    return shares


# The ratios q of the published budgets.
DVT_RATIOS = tuple(step / 20 for step in range(1, 60))
PERCEIVER_RATIOS = (*((step + 4) / 20 for step in range(17)), *(20 / (step + 4) for step in range(16, 0, -1)))


class Operation(NamedTuple):
    """What thresholds come to on images: their shares by exit, their mean cost, and their accuracy.

    Attributes:
      shares: of the images that leave at each exit.
      cost: mean cost of an image.
      accuracy: share of the images that are right; None where it is unknown which are.
    """

    shares: Float[np.ndarray, "m"]
    cost: float
    accuracy: float | None


def operate(
    confidence: Float[np.ndarray, "m n"],
    thresholds: Float[np.ndarray, "m"],
    costs: Real[np.ndarray, "m"],
    right: Bool[np.ndarray, "m n"] | None = None,
) -> Operation:
    """Returns what thresholds come to.

    Args:
      costs: cumulative, of leaving at each exit.
      right: whether each exit's prediction is right.
    """
    leaving, count = exit_of(confidence, thresholds), confidence.shape[1]
    shares = np.bincount(leaving, minlength=len(costs)) / count
    accuracy = None if right is None else float(right[leaving, np.arange(count)].mean())
    return Operation(shares, float(np.asarray(costs, float)[leaving].mean()), accuracy)


def thresholds(
    confidence: Float[np.ndarray, "m n"],
    costs: Real[np.ndarray, "m"],
    budget: float,
    *,
    right: Bool[np.ndarray, "m n"] | None = None,
    ratios: Sequence[float] = DVT_RATIOS,
) -> Float[np.ndarray, "m"]:
    """Returns thresholds with a mean cost of at most `budget` on held-out images: the most accurate, or the dearest.

    With `right`, the published family of shares is refined by a search over each threshold in turn, which is
    deterministic and never leaves the budget; DVT's paper uses a genetic algorithm for it.

    >>> sure = np.array([[0.9, 0.4, 0.8, 0.6], [0.9, 0.9, 0.9, 0.9]])
    >>> thresholds(sure, np.array([1.0, 4.0]), budget=2.5).tolist()
    [0.8, -100000000.0]

    Args:
      confidence: of all exits for n held-out images.
      costs: cumulative, of leaving at each exit, in any unit.
      budget: the largest mean cost, in the same unit.
      right: whether each exit's prediction is right; None chooses the dearest of the family within the budget.
      ratios: q of the family, see `geometric_shares`.

    Raises:
      UserError: even if all images left at the first exit, it would cost more; or there are no images.
    """
    if not confidence.shape[1] or not np.isfinite(budget):
        raise UserError(
            f"budget={budget} for {confidence.shape[1]} images: thresholds need held-out images and a finite budget."
        )
    if budget < costs[0]:
        raise UserError(
            f"A budget of {budget:.4g} is below the cost of the first exit, {float(costs[0]):.4g}: raise the budget."
        )
    leave_first = np.array([EVERYBODY] * len(costs))
    family = [thresholds_of_shares(confidence, geometric_shares(len(costs), q)) for q in ratios]
    stay = np.array([NOBODY] * (len(costs) - 1) + [EVERYBODY])
    worth = lambda values: _worth(operate(confidence, values, costs, right), budget)
    best = max([leave_first, stay, *family], key=worth)
    return best if right is None else _refined(best, confidence, worth)


def _worth(operation: Operation, budget: float) -> tuple[float, float]:
    if operation.cost > budget:
        return -1.0, -operation.cost
    return (operation.cost, 0.0) if operation.accuracy is None else (operation.accuracy, -operation.cost)


def _refined(
    start: np.ndarray, confidence: np.ndarray, worth: Callable[[np.ndarray], tuple[float, float]]
) -> np.ndarray:
    """Moves one threshold at a time to the best of its quantiles, until nothing gets better."""
    best, value = start, worth(start)
    grids = [np.append(np.quantile(values, np.linspace(0, 1, 65)), NOBODY) for values in confidence[:-1]]
    improved = True
    while improved:
        improved = False
        for exit, grid in enumerate(grids):
            for threshold in grid:
                moved = best.copy()
                moved[exit] = threshold
                if (moved_value := worth(moved)) > value:
                    best, value, improved = moved, moved_value, True
    return best
