"""Similarity of the features of two networks on the same images: orthogonal Procrustes, CKA, PWCCA and SVCCA.

All are distances, 0 for features that differ by a rotation and a scale (CCA: by any invertible map). They are computed
from the cross-products of the features, which are accumulated by batch in float64: memory does not grow with the number
of images.

Ding et al., 2021, "Grounding Representation Similarity with Statistical Testing", as in "Which Tokens to Use?" (Haurum
et al., 2023), Sec. 5.5 and supplement J; CKA: Kornblith et al., 2019; PWCCA: Morcos et al., 2018; SVCCA: Raghu et al.,
2017.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Real

from jaxprune.errors import UserError

_CHUNK = 4096  # number of images per matrix product


class CrossProducts(NamedTuple):
    """Sums over images of products of centred features, each network's features divided by their Frobenius norm.

    Attributes:
      first: (d, d) of the first network's features with each other.
      second: (e, e) of the second network's.
      cross: (d, e) of the first network's with the second's.
      count: number of images.
    """

    first: Float[np.ndarray, "d d"]
    second: Float[np.ndarray, "e e"]
    cross: Float[np.ndarray, "d e"]
    count: int


class Alignment:
    """Accumulates the cross-products of two networks' features, batch by batch.

    >>> found = Alignment()
    >>> rows = np.random.default_rng(0).normal(size=(20, 3))
    >>> found.update(rows[:12], rows[:12, ::-1])
    >>> found.update(rows[12:], rows[12:, ::-1])
    >>> abs(round(procrustes_distance(found.products()), 6))
    0.0
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._products = np.zeros(0)
        self._width = 0

    def update(self, first: Real[np.ndarray, "b d"], second: Real[np.ndarray, "b e"]) -> None:
        """Adds the features of both networks for the same images, one row per image."""
        both = np.concatenate([np.asarray(first, np.float64), np.asarray(second, np.float64)], axis=1)
        if not self._count:
            self._width = np.shape(first)[1]
            self._mean, self._products = np.zeros(both.shape[1]), np.zeros((both.shape[1],) * 2)
        # Products of deviations from the running mean, corrected for the shift of the mean by each batch (Chan et al.,
        # 1983), which is accurate for large means.
        mean, total = both.mean(0), self._count + len(both)
        centred, shift = both - mean, mean - self._mean
        self._products += centred.T @ centred + np.outer(shift, shift) * (self._count * len(both) / total)
        self._mean, self._count = self._mean + shift * (len(both) / total), total

    def products(self) -> CrossProducts:
        """Returns the sums over all images so far."""
        d, sums = self._width, self._products
        lengths = np.sqrt(np.repeat([np.trace(sums[:d, :d]), np.trace(sums[d:, d:])], [d, len(sums) - d]))
        scaled = sums / np.maximum(np.outer(lengths, lengths), np.finfo(np.float64).tiny)
        return CrossProducts(scaled[:d, :d], scaled[d:, d:], scaled[:d, d:], self._count)


def procrustes_distance(products: CrossProducts) -> float:
    """Returns the squared distance after the best rotation, from 0 to 2."""
    nuclear = np.linalg.svd(products.cross, compute_uv=False).sum()
    return float(np.trace(products.first) + np.trace(products.second) - 2 * nuclear)


def cka_distance(products: CrossProducts) -> float:
    """Returns 1 - linear centred kernel alignment, from 0 to 1."""
    norms = np.linalg.norm(products.first) * np.linalg.norm(products.second)
    return float(1 - np.square(products.cross).sum() / norms)


def cka_prime_distance(products: CrossProducts) -> float:
    """Returns `cka_distance` with the fourth powers of the feature norms in the denominator (CKA′).

    It is above 0 even for equal features, unless they have rank one.
    """
    norms = np.trace(products.first) ** 2 + np.trace(products.second) ** 2
    return float(1 - 2 * np.square(products.cross).sum() / norms)


def canonical_correlations(products: CrossProducts) -> Float[np.ndarray, "k"]:
    """Returns the correlations of the canonical directions, k = min(d, e) of them in falling order.

    Raises:
      UserError: there are not more images than features, in which case all correlations would be 1.
    """
    widest = max(products.cross.shape)
    if products.count <= widest:
        raise UserError(
            f"Canonical correlations of {widest} features need more images than features, and there are "
            f"{products.count}: "
            f"give at least {widest + 1}, many more for a stable value, or compare by CKA or Procrustes."
        )
    return np.linalg.svd(_whitened(products), compute_uv=False)


def cca_distance(products: CrossProducts, *, squared: bool = False) -> float:
    """Returns 1 - the mean of the canonical correlations, or of their squares."""
    found = canonical_correlations(products)
    return float(1 - (found**2 if squared else found).mean())


def pwcca_distance(products: CrossProducts) -> float:
    """Returns 1 - the mean canonical correlation, weighted by the share of each direction in the first network.

    It is not symmetric.

    Raises:
      UserError: there are not more images than features.
    """
    correlations = canonical_correlations(products)
    root, _ = _roots(*np.linalg.eigh(products.first))
    return _pwcca(np.linalg.svd(_whitened(products), full_matrices=True)[0], correlations, root)


def _pwcca(directions: np.ndarray, correlations: np.ndarray, root: np.ndarray) -> float:
    """`pwcca_distance` from the canonical directions and the square root of the first network's products."""
    # The component of every feature along each canonical direction.
    weights = np.abs(directions.T @ root).sum(1)
    weights = weights / weights.sum()  # including directions without a counterpart in the second network
    return float(1 - (weights[: len(correlations)] * correlations).sum())


def svcca_distance(products: CrossProducts, *, explained: float = 0.99) -> float:
    """Returns 1 - the mean canonical correlation of the principal components that explain a share of the variance."""
    one, other = (_principal(*np.linalg.eigh(own), explained) for own in (products.first, products.second))
    inside = CrossProducts(
        one.T @ products.first @ one,
        other.T @ products.second @ other,
        one.T @ products.cross @ other,
        products.count,
    )
    return cca_distance(inside)


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
    products = products / scale**2
    decomposed = np.linalg.eigh(products)
    root, inverse = _roots(*decomposed)
    principal = _principal(*decomposed, 0.99)
    # In the basis of the components the products are diagonal.
    variances = np.einsum("dq,dq->q", principal, products @ principal)
    whitened = principal / np.sqrt(np.where(variances > 0, variances, np.inf))
    return Features(values, mean, scale, products, root, inverse, whitened)


def distances(first: Features, second: Features) -> dict[str, float]:
    """Returns Procrustes, CKA, PWCCA and SVCCA distances at once; see the functions of these names.

    The last two are NaN if there are not more images than features.

    >>> rows = np.random.default_rng(0).normal(size=(20, 3))
    >>> {name: abs(round(value, 6)) for name, value in distances(features(rows), features(rows[:, ::-1])).items()}
    {'Procrustes': 0.0, 'CKA': 0.0, 'PWCCA': 0.0, 'SVCCA': 0.0}
    """
    cross = _cross(first, second)
    found = {
        "Procrustes": procrustes_distance(CrossProducts(first.products, second.products, cross, len(first.values))),
        "CKA": cka_distance(CrossProducts(first.products, second.products, cross, len(first.values))),
        "PWCCA": float("nan"),
        "SVCCA": float("nan"),
    }
    if len(first.values) > max(cross.shape):
        directions, correlations, _ = np.linalg.svd(first.inverse @ cross @ second.inverse, full_matrices=True)
        found["PWCCA"] = _pwcca(directions, correlations, first.root)
        inside = np.linalg.svd(first.principal.T @ cross @ second.principal, compute_uv=False)
        found["SVCCA"] = float(1 - inside.mean())
    return found


def _cross(first: Features, second: Features) -> np.ndarray:
    """The cross-products of centred and scaled features, in float64, in chunks of images."""
    total = np.zeros((len(first.mean), len(second.mean)))
    for chunk in _chunks(first.values):
        one = first.values[chunk] - first.mean
        # Of an array with itself NumPy computes only half of the products.
        total += one.T @ (one if second is first else second.values[chunk] - second.mean)
    return total / (first.scale * second.scale)


def _chunks(values: Rows) -> Iterator[slice]:
    for start in range(0, len(values), _CHUNK):
        yield slice(start, start + _CHUNK)


def _whitened(products: CrossProducts) -> np.ndarray:
    one, other = (_roots(*np.linalg.eigh(own))[1] for own in (products.first, products.second))
    return one @ products.cross @ other


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
