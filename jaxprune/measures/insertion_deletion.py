"""Insertion and deletion curves: confidence while patches are added, or removed, in a scorer's order."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

Values = Mapping[tuple[str, int], np.ndarray]  # by scorer and number of patches, one value per image


def counts(num_patches: int, steps: int) -> tuple[int, ...]:
    """Returns the numbers of patches along a curve, from 1/`steps` of them to all; () for 0 steps."""
    return tuple(sorted({max(num_patches * step // steps, 1) for step in range(1, steps + 1)})) if steps else ()


def curves(
    kept: Values, left: Values, dense: np.ndarray, scorer: str, num_patches: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the confidence in the true class as {"insertion", "deletion"}: (shares of the patches (m,), (m, n)).

    Insertion is plotted against the share of present patches, deletion against the share of removed ones. Absent
    patches are removed from the network's tokens, without a replacement. The dense network is one end of both curves;
    the other end has the smallest number of patches, not zero.

    Args:
      kept: confidences with only the best patches.
      left: confidences with the best patches removed, by the number of remaining patches.
      dense: confidences of the dense network, (n,).
      scorer: the scorer that determines the order.
      num_patches: number of patches of an image.
    """
    numbers = sorted(count for name, count in left if name == scorer)
    shares = np.array([*numbers, num_patches]) / num_patches
    inserted = np.stack([*(kept[scorer, count] for count in numbers), dense])
    deleted = np.stack([*(left[scorer, count] for count in numbers), dense])
    return {"insertion": (shares, inserted), "deletion": (1 - shares[::-1], deleted[::-1])}


def area(x: Float[np.ndarray, "m"], y: Float[np.ndarray, "m *n"]) -> Float[np.ndarray, "*n"]:
    """Returns the area under each curve by the trapezoidal rule, divided by its width: its mean height."""
    return np.trapezoid(y, x, axis=0) / (x[-1] - x[0])
