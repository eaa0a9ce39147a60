"""Metrics of predictions and rankings, and the interval of a proportion."""

import math

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Shaped

NORMAL_95 = 1.96  # standard deviations to either side of the mean of a normal distribution that hold 95 % of it


def wilson_interval(correct: float | int, total: float | int, z: float = NORMAL_95) -> tuple[float, float]:
    """Returns the Wilson score interval of a proportion, 95 % at z = 1.96; (0, 1) where nothing was counted."""
    if not total:
        return 0.0, 1.0
    p, spread = correct / total, z * z / total
    centre = (p + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(p * (1 - p) / total + spread / (4 * total))
    return centre - half, centre + half


def average_precision(scores: Shaped[np.ndarray, "n c"], labels: Shaped[np.ndarray, "n c"]) -> Float[np.ndarray, "c"]:
    """Returns the average precision of each class; 0 for a class without positives.

    Needs the scores of the whole data set, hence numpy on the host, in float64. Ties go to the earlier example.

    Args:
      scores: one for each example and class.
      labels: positive = the class is present.
    """
    order = np.argsort(-np.asarray(scores, np.float64), axis=0, kind="stable")
    hits = np.take_along_axis(np.asarray(labels) > 0, order, axis=0)
    precision = np.cumsum(hits, axis=0) / np.arange(1, len(hits) + 1)[:, None]
    # The published epsilon; it also makes a class without positives 0.
    return (precision * hits).sum(0) / (hits.sum(0) + 1e-8)


def mean_average_precision(scores: Shaped[np.ndarray, "n c"], labels: Shaped[np.ndarray, "n c"]) -> float:
    """Returns the mean of `average_precision` over the classes, in [0, 1] (papers print percent)."""
    return float(average_precision(scores, labels).mean())


def kendall_tau(left: Shaped[Array, "*lists n"], right: Shaped[Array, "*lists n"]) -> Float[Array, "*lists"]:
    """Returns Kendall's rank correlation of each list, corrected for ties (tau-b); 0 where one side is all ties.

    1 = the same order, -1 = the reverse, about 0 = unrelated. Compares all pairs, n² of them.
    """
    order = lambda x: jnp.sign(x[..., :, None] - x[..., None, :]).astype(jnp.float32)
    ours, theirs = order(left), order(right)
    untied = jnp.abs(ours).sum((-2, -1)) * jnp.abs(theirs).sum((-2, -1))
    return (ours * theirs).sum((-2, -1)) / jnp.sqrt(jnp.maximum(untied, 1))
