"""Similarity of two clusterings of an image's patches: homogeneity, completeness, normalised mutual information.

"Which Tokens to Use?" (Haurum et al., 2023), supplement E, Eq. 3 to 7, with natural logarithms.
"""

from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int


class ClusteringAgreement(NamedTuple):
    """The similarity of two clusterings, from 0 to 1, one value per image.

    Attributes:
      homogeneity: 1 if every cluster has members of one class only.
      completeness: 1 if all members of a class are in one cluster.
      nmi: mutual information divided by the mean of both entropies; symmetric in both clusterings.
    """

    homogeneity: Float[np.ndarray, "*n"]
    completeness: Float[np.ndarray, "*n"]
    nmi: Float[np.ndarray, "*n"]


def clustering_agreement(classes: Int[np.ndarray, "*n p"], clusters: Int[np.ndarray, "*n p"]) -> ClusteringAgreement:
    """Compares clusterings with reference clusterings, the classes, image by image.

    To compare two keep rates, use the clusters of the lower rate as classes: then the homogeneity is 1 if the clusters
    of the higher rate are nested in those of the lower one, whatever their numbers. The text of the paper has them the
    other way round, which would give nested clusters a low homogeneity.

    >>> nested = clustering_agreement(np.array([[0, 0, 0, 0, 1, 1]]), np.array([[0, 0, 1, 1, 2, 2]]))
    >>> nested.homogeneity.round(3), nested.completeness.round(3)
    (array([1.]), array([0.579]))

    Args:
      classes: class of each patch, any integer; -1 counts as a class.
      clusters: cluster of each patch, likewise.
    """
    rows, columns = (np.asarray(labels, np.int64) - np.min(labels) for labels in (classes, clusters))
    # Sorting dominates the cost, and is faster for shorter integers.
    if (rows.max(initial=0) + 1) * (columns.max(initial=0) + 1) < 2**31:
        rows, columns = rows.astype(np.int32), columns.astype(np.int32)
    pairs = rows * (columns.max(initial=0) + 1) + columns
    of_classes, of_clusters, of_pairs = map(_entropy, (rows, columns, pairs))
    shared = np.maximum(of_classes + of_clusters - of_pairs, 0)
    # A single cluster has no entropy to explain.
    share = lambda entropy: np.divide(shared, entropy, out=np.ones_like(shared), where=entropy > 0)
    return ClusteringAgreement(share(of_classes), share(of_clusters), share((of_classes + of_clusters) / 2))


def _entropy(labels: np.ndarray) -> np.ndarray:
    """The entropy of the labels of each image; exactly 0 if all are equal."""
    *lead, patches = labels.shape
    ordered = np.sort(labels.reshape(-1, patches), axis=-1)
    first = np.ones(ordered.shape, bool)  # first of each run of equal labels
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    places = np.flatnonzero(first)
    shares = scipy.special.entr(np.arange(patches + 1) / patches)[np.diff(places, append=ordered.size)]
    return np.bincount(places // patches, shares, minlength=len(ordered)).reshape(lead)
