"""Maps of the mean depth that patches reach, and the similarity of two such maps.

"Which Tokens to Use?" (Haurum et al., 2023), Sec. 5.3 and supplement H; the measures are those of saliency benchmarks
(Bylinskii et al., 2018).
"""

from collections.abc import Callable, Sequence

import numpy as np
import scipy
from jaxtyping import Bool, Int, Real

from jaxprune.measures import correlation

Map = Real[np.ndarray, "rows columns"]


def depths(masks: Sequence[Bool[np.ndarray, "n p"]], layers: Sequence[int], num_layers: int) -> Int[np.ndarray, "n p"]:
    """Returns the number of blocks that each patch passes: all of them, or those before the step that drops it.

    >>> depths([np.array([[True, False, True]]), np.array([[False, False, True]])], (3, 6), 12)
    array([[ 6,  3, 12]])

    Args:
      masks: after each step, True on the remaining patches.
      layers: the block of each step, from 0; -1 = before the first.
      num_layers: number of blocks of the network.
    """
    passed = np.full(np.shape(masks[0]), num_layers)
    for mask, layer in reversed(list(zip(masks, layers, strict=True))):
        passed = np.where(mask, passed, max(layer, 0))
    return passed


def spearman(first: Map, second: Map) -> float:
    """Returns Spearman's rank correlation of two maps; NaN if one is constant."""
    return float(correlation.spearman(np.ravel(first), np.ravel(second)))


def pearson(first: Map, second: Map) -> float:
    """Returns Pearson's correlation of two maps; NaN if one is constant."""
    return float(correlation.pearson(np.ravel(first), np.ravel(second)))


def kl_divergence(first: Map, second: Map) -> float:
    """Returns the KL divergence in bits, Σ second · log₂(second / first).

    Both maps are divided by their sums. The order follows saliency benchmarks: the second map is the ground truth. NaN
    if the sum of a map is 0, as for all measures that divide by it.
    """
    return _kl(_shares(second), _shares(first))


def js_divergence(first: Map, second: Map, *, reference: bool = False) -> float:
    """Returns the Jensen–Shannon divergence in bits, from 0 to 1: the mean KL divergence of both maps from their mean.

    Args:
      reference: exchange the arguments of both divergences, as the paper's published code does.
    """
    first, second = _shares(first), _shares(second)
    mean = (first + second) / 2
    if reference:
        return (_kl(mean, first) + _kl(mean, second)) / 2
    return (_kl(first, mean) + _kl(second, mean)) / 2


def earth_movers_distance(first: Map, second: Map) -> float:
    """Returns the earth mover's distance in patches, by exact transport.

    Both maps are divided by their sums; distances are Euclidean. NaN if the sum of a map is 0.
    """
    surplus = (_shares(first) - _shares(second)).ravel()
    if np.isnan(surplus).any():
        return float("nan")
    # The distance is a metric, so mass that both maps share at a position stays there; only differences are moved.
    sources, sinks = np.flatnonzero(surplus > 0), np.flatnonzero(surplus < 0)
    if not len(sources) or not len(sinks):
        return 0.0
    places = np.stack(np.unravel_index(np.arange(surplus.size), np.shape(first)), axis=1).astype(float)
    costs = scipy.spatial.distance.cdist(places[sources], places[sinks])
    leaves = scipy.sparse.kron(scipy.sparse.eye(len(sources)), np.ones((1, len(sinks))))
    arrives = scipy.sparse.kron(np.ones((1, len(sources))), scipy.sparse.eye(len(sinks)))
    # The constraint of the last sink is redundant. The mass is normalised, because the solver's tolerance is absolute.
    moved = surplus[sources].sum()
    masses = np.concatenate([surplus[sources], -surplus[sinks]])[:-1] / moved
    flow = scipy.sparse.csr_array(scipy.sparse.vstack([leaves, arrives]))[:-1]
    solution = scipy.optimize.linprog(costs.ravel(), A_eq=flow, b_eq=masses, method="highs-ds")
    if solution.status:
        raise RuntimeError(f"The transport problem between two maps was not solved: {solution.message}")
    return float(solution.fun * moved)


def similarity(first: Map, second: Map) -> float:
    """Returns the mass that two maps share (SIM), each shifted to start at 0, divided by its sum; NaN if constant."""
    scaled = [np.asarray(values, np.float64) - np.min(values) for values in (first, second)]
    if not all(values.any() for values in scaled):
        return float("nan")
    return float(np.minimum(*map(_shares, scaled)).sum())


# By column name. Correlations and SIM are high for similar maps, the others low.
MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "Spearman": spearman,
    "Pearson": pearson,
    "SIM": similarity,
    "JSD": js_divergence,
    "KL": kl_divergence,
    "EMD": earth_movers_distance,
}


def measures(first: Map, second: Map) -> dict[str, float]:
    """Returns all `MEASURES` of two maps."""
    return {name: call(first, second) for name, call in MEASURES.items()}


def _shares(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float64)
    total = values.sum()
    return values / total if total else np.full(values.shape, np.nan)


def _kl(truth: np.ndarray, code: np.ndarray) -> float:
    return float(scipy.special.rel_entr(truth, code).sum() / np.log(2))
