"""Measures of rankings: average precision of classes, and Kendall's rank correlation."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Shaped


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
    """Returns the mean of `average_precision` over all classes, in [0, 1] (papers print percent).

    A class without positives counts as 0, as published; `measures.several_labels.mean_over_present` leaves it out.
    """
    return float(average_precision(scores, labels).mean())


def kendall_tau(
    left: Shaped[Array | np.ndarray, "*lists n"], right: Shaped[Array | np.ndarray, "*lists n"]
) -> Float[Array | np.ndarray, "*lists"]:
    """Returns Kendall's rank correlation of each list, corrected for ties (tau-b); 0 where one side is all ties.

    1 = the same order, -1 = the reverse, about 0 = unrelated. Compares all pairs, n² of them. In float32 for JAX's
    arrays, and in float64 on the host for NumPy's.
    """
    xp, dtype = (np, np.float64) if isinstance(left, np.ndarray) else (jnp, jnp.float32)
    signs = lambda x: xp.sign(x[..., :, None] - x[..., None, :])
    first, second = (signs(xp.asarray(values).astype(dtype)) for values in (left, right))
    untied = xp.abs(first).sum((-2, -1)) * xp.abs(second).sum((-2, -1))
    return (first * second).sum((-2, -1)) / xp.sqrt(xp.maximum(untied, 1))
