"""Similarity of the features of two networks on the same images: orthogonal Procrustes, CKA, PWCCA and SVCCA.

All are distances, 0 for features that differ by a rotation and a scale. They are computed from cross-products of the
centred features, summed in chunks of images in float64: memory does not grow with the number of images.

Ding et al., 2021, "Grounding Representation Similarity with Statistical Testing", as in "Which Tokens to Use?" (Haurum
et al., 2023), Sec. 5.5 and supplement J; CKA: Kornblith et al., 2019; PWCCA: Morcos et al., 2018; SVCCA: Raghu et al.,
2017.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Float

_CHUNK = 4096  # number of images per matrix product


class Rows(Protocol):
    """Features of each image, (n, d), of which slices are read: an array, or `stored_rows.StoredRows`."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> np.ndarray: ...


class Features(NamedTuple):
    """The features of one network with the quantities that every comparison needs, computed once.

    Attributes:
      values: features of each image, (n, d), unchanged; read again by every comparison, in chunks of images.
      mean: their mean, (d,).
      scale: the Frobenius norm of the centred values.
      products: cross-products of the centred and scaled values, (d, d).
      root, inverse: the symmetric square root of `products`, and its inverse; see `_roots`.
      principal: the principal components that explain 99 % of the variance, whitened, (d, q).
    """

    values: Rows
    mean: Float[np.ndarray, "d"]
    scale: float
    products: Float[np.ndarray, "d d"]
    root: Float[np.ndarray, "d d"]
    inverse: Float[np.ndarray, "d d"]
    principal: Float[np.ndarray, "d q"]


def features(values: Rows) -> Features:
    """Prepares features for `distances`; memory does not grow with the number of images, unless `values` does."""
    total = sum(values[chunk].sum(axis=0, dtype=np.float64) for chunk in _chunks(values))
    mean = np.asarray(total / len(values))
    plain = Features(values, mean, 1.0, *(np.zeros((0, 0)),) * 4)
    products = _cross(plain, plain)
    scale = max(float(np.sqrt(np.trace(products))), np.finfo(np.float64).tiny)
    products = products / scale / scale  # the square of the smallest scale is 0
    decomposed = np.linalg.eigh(products)
    root, inverse = _roots(*decomposed)
    principal = _principal(*decomposed, 0.99)
    # In the basis of the components the products are diagonal.
    variances = np.einsum("dq,dq->q", principal, products @ principal)
    whitened = principal / np.sqrt(np.where(variances > 0, variances, np.inf))
    return Features(values, mean, scale, products, root, inverse, whitened)


def distances(first: Features, second: Features) -> dict[str, float]:
    """Returns Procrustes, CKA, PWCCA and SVCCA distances at once.

    Procrustes is the squared distance after the best rotation, from 0 to 2; CKA is 1 - linear centred kernel alignment;
    PWCCA is 1 - the mean canonical correlation, weighted by the share of each direction in the first network, so it is
    not symmetric; SVCCA is 1 - the mean canonical correlation of the principal components that explain 99 % of the
    variance. The last two are NaN if there are not more images than features: all correlations would be 1. All are NaN
    where features do not vary, as those of a single image.

    >>> rows = np.random.default_rng(0).normal(size=(20, 3))
    >>> {name: abs(round(value, 6)) for name, value in distances(features(rows), features(rows[:, ::-1])).items()}
    {'Procrustes': 0.0, 'CKA': 0.0, 'PWCCA': 0.0, 'SVCCA': 0.0}
    """
    if not (first.products.any() and second.products.any()):
        return dict.fromkeys(("Procrustes", "CKA", "PWCCA", "SVCCA"), math.nan)
    cross = _cross(first, second)
    nuclear = np.linalg.svd(cross, compute_uv=False).sum()
    norms = np.linalg.norm(first.products) * np.linalg.norm(second.products)
    return {
        "Procrustes": float(np.trace(first.products) + np.trace(second.products) - 2 * nuclear),
        "CKA": float(1 - np.square(cross).sum() / norms),
        **_canonical_distances(first, second, cross),
    }


def _canonical_distances(first: Features, second: Features, cross: Float[np.ndarray, "d e"]) -> dict[str, float]:
    if len(first.values) <= max(cross.shape):
        return {"PWCCA": float("nan"), "SVCCA": float("nan")}
    directions, correlations, _ = np.linalg.svd(first.inverse @ cross @ second.inverse, full_matrices=True)
    # The component of every feature along each canonical direction, with those without a counterpart in the second.
    weights = np.abs(directions.T @ first.root).sum(1)
    weights = weights / weights.sum()
    of_components = np.linalg.svd(first.principal.T @ cross @ second.principal, compute_uv=False)
    return {
        "PWCCA": float(1 - (weights[: len(correlations)] * correlations).sum()),
        "SVCCA": float(1 - of_components.mean()),
    }


def _cross(first: Features, second: Features) -> np.ndarray:
    """The cross-products of centred and scaled features, in float64, in chunks of images."""
    total = np.zeros((len(first.mean), len(second.mean)))
    for chunk in _chunks(first.values):
        centred = first.values[chunk] - first.mean
        # Of an array with itself NumPy computes only half of the products.
        total += centred.T @ (centred if second is first else second.values[chunk] - second.mean)
    return total / (first.scale * second.scale)


def _chunks(values: Rows) -> Iterator[slice]:
    for start in range(0, len(values), _CHUNK):
        yield slice(start, start + _CHUNK)


def _roots(values: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The symmetric square root of a matrix with these eigenvalues, and its inverse; directions without variance: 0."""
    # By rounding, the variance of such a direction may be tiny or negative.
    least = values.max(initial=0) * len(values) * np.finfo(np.float64).eps
    roots = np.sqrt(np.where(values > least, values, 0))
    inverse = np.divide(1, roots, out=np.zeros_like(roots), where=roots > 0)
    return (vectors * roots) @ vectors.T, (vectors * inverse) @ vectors.T


def _principal(values: np.ndarray, vectors: np.ndarray, explained: float) -> np.ndarray:
    """The eigenvectors of the largest eigenvalues, which explain this share of their sum."""
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    count = int(np.searchsorted(np.cumsum(values), explained * values.sum())) + 1
    return vectors[:, : min(count, len(values))]
