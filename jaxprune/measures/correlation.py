"""Correlations of two lists of numbers, row by row: Pearson's r, Spearman's ρ, Kendall's τ."""

import numpy as np
import scipy
from jaxtyping import Float, Real

from jaxprune.metrics import kendall_tau


def pearson(x: Real[np.ndarray, "*rows n"], y: Real[np.ndarray, "*rows n"]) -> Float[np.ndarray, "*rows"]:
    """Returns Pearson's correlation of each row; NaN where a side is constant."""
    return (unit_deviations(x) * unit_deviations(y)).sum(-1)


def spearman(x: Real[np.ndarray, "*rows n"], y: Real[np.ndarray, "*rows n"]) -> Float[np.ndarray, "*rows"]:
    """Returns Spearman's rank correlation of each row, ties at their mean rank; NaN where a side is constant.

    >>> spearman(np.array([[1, 2, 3], [1, 2, 3]]), np.array([[2, 4, 9], [3, 2, 1]])).round(6)
    array([ 1., -1.])
    """
    return (unit_ranks(x) * unit_ranks(y)).sum(-1)


def kendall(x: Real[np.ndarray, "*rows n"], y: Real[np.ndarray, "*rows n"]) -> Float[np.ndarray, "*rows"]:
    """Returns Kendall's τ-b of each row; NaN where a side is constant."""
    constant = (np.ptp(x, axis=-1) == 0) | (np.ptp(y, axis=-1) == 0)
    return np.where(constant, np.nan, kendall_tau(x, y))


def unit_ranks(values: Real[np.ndarray, "*rows n"]) -> Float[np.ndarray, "*rows n"]:
    """Returns the centred ranks of each row at unit length, whose products are rank correlations; NaN if constant."""
    return unit_deviations(scipy.stats.rankdata(values, axis=-1))


def unit_deviations(values: Real[np.ndarray, "*rows n"]) -> Float[np.ndarray, "*rows n"]:
    """Returns the deviations from the mean of each row at unit length, in float64; NaN if constant."""
    # The mean of equal numbers is rounded, so that deviations from it need not be 0.
    varies = np.ptp(values, axis=-1, keepdims=True) > 0
    deviations = np.asarray(values, np.float64) - np.mean(values, axis=-1, keepdims=True, dtype=np.float64)
    lengths = np.linalg.norm(deviations, axis=-1, keepdims=True)
    return np.divide(deviations, lengths, out=np.full(deviations.shape, np.nan), where=varies & (lengths > 0))
