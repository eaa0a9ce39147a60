"""How alike two clusterings of the patches of an image are: homogeneity, completeness, normalised mutual information.

"Which Tokens to Use?" (Haurum et al., 2023), supplement E, Eq. 3 to 7, with natural logarithms.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import special


class Likeness(NamedTuple):
    """What two clusterings have in common, each from 0 to 1, a value an image.

    Attributes:
      homogeneity: 1 where every cluster holds members of one class only.
      completeness: 1 where the members of a class are all in one cluster.
      nmi: mutual information over the mean of both entropies; it does not matter which of both are the classes.
    """

    homogeneity: Float[np.ndarray, "*n"]
    completeness: Float[np.ndarray, "*n"]
    nmi: Float[np.ndarray, "*n"]


def likeness(classes: Int[np.ndarray, "*n p"], clusters: Int[np.ndarray, "*n p"]) -> Likeness:
    """Compares clusterings with others that are taken for the truth, image by image.

    To compare two keep rates, the classes are the clusters of the lower one: then the homogeneity is 1 where the
    clusters of the higher rate lie inside of those of the lower one, whatever their numbers. The paper has both the
    other way round in its text, with which nested clusters would get a low homogeneity.

    >>> nested = likeness(np.array([[0, 0, 0, 0, 1, 1]]), np.array([[0, 0, 1, 1, 2, 2]]))
    >>> nested.homogeneity.round(3), nested.completeness.round(3)
    (array([1.]), array([0.579]))

    Args:
      classes: of each patch, any integers; -1 is one of them.
      clusters: the same of the clusterings that are compared.
    """
    rows, columns = (np.asarray(labels, np.int64) - np.min(labels) for labels in (classes, clusters))
    # Sorting is most of the work, and the faster the shorter the numbers.
    if (rows.max(initial=0) + 1) * (columns.max(initial=0) + 1) < 2**31:
        rows, columns = rows.astype(np.int32), columns.astype(np.int32)
    own, others, both = map(_entropy, (rows, columns, rows * (columns.max(initial=0) + 1) + columns))
    shared = np.maximum(own + others - both, 0)
    # A single cluster has no entropy to explain.
    share = lambda whole: np.divide(shared, whole, out=np.ones_like(shared), where=whole > 0)
    return Likeness(share(own), share(others), share((own + others) / 2))


def _entropy(labels: np.ndarray) -> np.ndarray:
    """The entropy of drawing a label of each image; exactly 0 where all are one."""
    *lead, patches = labels.shape
    ordered = np.sort(labels.reshape(-1, patches), axis=-1)
    first = np.ones(ordered.shape, bool)  # of the labels that are equal
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    places = np.flatnonzero(first)
    shares = special.entr(np.arange(patches + 1) / patches)[np.diff(places, append=ordered.size)]
    return np.bincount(places // patches, shares, minlength=len(ordered)).reshape(lead)
