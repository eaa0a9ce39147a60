"""Metrics as (sum, count) pairs, which batches, devices and hosts merge by addition."""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Shaped
from scipy import stats

Metric = tuple[Any, Any]


def average(values: Shaped[Array, "b"], where: Bool[Array, "b"] | None = None) -> Metric:
    """Returns the (sum, count) of `values`, leaving out the rows where `where` is False; counts stay integers."""
    if where is None:
        where = jnp.ones(values.shape, bool)
    return jnp.where(where, values, 0).sum(), where.sum()


def accuracy(logits: Float[Array, "b c"], labels: Int[Array, "b"], where: Bool[Array, "b"] | None = None) -> Metric:
    """Returns the (sum, count) of images whose label has the largest logit; ties go to the lowest class."""
    return average(jnp.argmax(logits, -1) == labels, where)


def top_k_accuracy(
    logits: Float[Array, "b c"], labels: Int[Array, "b"], k: int = 5, where: Bool[Array, "b"] | None = None
) -> Metric:
    """Returns the (sum, count) of images whose label is among the `k` largest logits; ties go to the lowest class."""
    own = jnp.take_along_axis(logits, labels[:, None], axis=1)
    earlier = jnp.arange(logits.shape[1])[None, :] < labels[:, None]
    rank = ((logits > own) | ((logits == own) & earlier)).sum(-1)
    # Every comparison with NaN is False, which must not count as a hit.
    return average((rank < k) & ~jnp.isnan(own[:, 0]), where)


def merge(left: Mapping[str, Metric], right: Mapping[str, Metric]) -> dict[str, Metric]:
    """Adds two sets of metrics, on device or host; a name in only one of them is kept."""
    both = {name: jax.tree.map(operator.add, left[name], right[name]) for name in left if name in right}
    return {**left, **right, **both}


def compute(totals: Mapping[str, Metric]) -> dict[str, float]:
    """Divides every sum by its count; NaN where nothing was counted."""
    totals = jax.device_get(dict(totals))
    return {name: float(total) / float(count) if count else math.nan for name, (total, count) in totals.items()}


def wilson_interval(correct: float | int, total: float | int, z: float = 1.96) -> tuple[float, float]:
    """Returns the Wilson score interval of a proportion, 95 % at z = 1.96; (0, 1) where nothing was counted."""
    if not total:
        return 0.0, 1.0
    p, spread = correct / total, z * z / total
    centre = (p + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(p * (1 - p) / total + spread / (4 * total))
    return centre - half, centre + half


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of a few runs and the half-width of its 95 % Student's t interval, NaN for a single run."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


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


def patch_recall(
    ranks: Int[Array, "b p"], positive: Bool[Array, "b p"], counts: tuple[int, ...]
) -> tuple[Int[Array, "b k"], Int[Array, "b"]]:
    """Counts how many of the positive patches are among the best-ranked ones.

    Args:
      ranks: rank of each patch in its image, 0 = kept first.
      positive: True on positive patches.
      counts: the numbers of patches to keep.

    Returns:
      (hits, total): the number of positive patches kept for each of `counts`, and of all positive patches. Recall over
      a data set is hits.sum(0) / total.sum() (micro), or the mean of hits / total over the images that have any
      (macro).
    """
    kept = ranks[:, None, :] < jnp.asarray(counts)[None, :, None]
    return (kept & positive[:, None, :]).sum(-1), positive.sum(-1)
