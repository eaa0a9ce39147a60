"""The risk of a plan: per image, whether it still agrees with the dense network.

Agreement needs no labels. A classifier agrees if it predicts the same class. Features agree if they retrieve the same
images: among the dense features of the estimation images, the nearest neighbour of the plan's feature is one of the k
nearest neighbours of the dense feature. The test images are not part of this bank, so their errors are independent.

Lost accuracy needs labels: an error is an image that the dense network gets right and the plan wrong. Accuracy falls by
at most the fraction of such images, since the plan may also gain others. Without a classifier, the k nearest
neighbours vote.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Shaped

from jaxprune.errors import UserError
from jaxprune.measures.intervals import Interval, paired_difference, share
from jaxprune.measures.knn import knn_classes, knn_classes_of_others
from jaxprune.measures.retrieval import retrieved


class ImagePredictions(NamedTuple):
    """The predictions of a network for images.

    Attributes:
      values: predicted classes (n,), or features (n, d).
      labels: labels of the images, -1 = none.
    """

    values: Shaped[np.ndarray, "n *d"]
    labels: Int[np.ndarray, "n"]

    def __getitem__(self, part):  # pyright: ignore[reportIncompatibleMethodOverride]
        return ImagePredictions(self.values[part], self.labels[part])


class ClassScores(NamedTuple):
    """The accuracy of a classifier on labelled images.

    Attributes:
      accuracy: with its interval.
      difference: from the dense network's, paired by image; None of the dense network.
    """

    accuracy: Interval
    difference: Interval | None

    @classmethod
    def of(cls, predictions: ImagePredictions, dense: ImagePredictions) -> "ClassScores | None":
        """Returns the scores of predictions; None for features, and where some images have no label.

        >>> truth, right = np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0])
        >>> scores = ClassScores.of(ImagePredictions(right, truth), ImagePredictions(truth, truth))
        >>> scores.accuracy.value, round(scores.difference.value, 2)
        (0.75, -0.25)

        Args:
          dense: predictions of the dense network, whose first images are the same ones.
        """
        if predictions.values.ndim > 1 or (predictions.labels < 0).any():
            return None
        correct = predictions.values == predictions.labels
        dense_correct = (dense.values == dense.labels)[: len(correct)]
        change = None if predictions.values is dense.values else paired_difference(correct, dense_correct)
        return cls(share(int(correct.sum()), len(correct)), change)


def agreement_errors(
    dense: ImagePredictions, plan: ImagePredictions, bank: ImagePredictions, *, neighbours: int, in_bank: bool
) -> Bool[np.ndarray, "n"]:
    """Returns True where a plan does not agree with the dense network.

    >>> bank = ImagePredictions(np.eye(3, dtype=np.float32), np.zeros(3, int))
    >>> features = (np.array([row], np.float32) for row in ([1, 0.2, 0], [0.2, 1, 0]))
    >>> dense, plan = (ImagePredictions(values, np.zeros(1, int)) for values in features)
    >>> [bool(agreement_errors(dense, plan, bank, neighbours=k, in_bank=False)[0]) for k in (1, 2)]
    [True, False]

    Args:
      dense, plan: predictions for the same images.
      bank: predictions of the dense network for the images to retrieve; a classifier needs none.
      neighbours: the number k of neighbours.
      in_bank: whether the images are the first of the bank, in which case none retrieves itself.
    """
    if dense.values.ndim == 1:
        return dense.values != plan.values
    queries = {"plan": plan.values}
    return ~retrieved(bank.values, dense.values, queries, k=neighbours, in_gallery=in_bank)["plan"].is_neighbour


def accuracy_errors(
    dense: ImagePredictions, plan: ImagePredictions, bank: ImagePredictions, *, neighbours: int, in_bank: bool
) -> Bool[np.ndarray, "n"]:
    """Returns True where the dense network is right and a plan is wrong; arguments as for `agreement_errors`.

    Raises:
      UserError: some images have no label.
    """
    if (dense.labels < 0).any() or (bank.labels < 0).any():
        raise UserError("Some images have no label, so accuracy cannot be bounded: bound agreement, or label them.")

    def classes(predictions: ImagePredictions) -> np.ndarray:
        if predictions.values.ndim == 1:
            return predictions.values
        if not in_bank:
            return knn_classes(bank.values, bank.labels, predictions.values, k=neighbours)
        if len(predictions.values) == len(bank.values):
            return knn_classes_of_others(bank.values, bank.labels, predictions.values, k=neighbours)
        # Padded with others of the bank to the number of queries.
        rest = bank.values[len(predictions.values) :]
        queries = np.concatenate([predictions.values, rest])
        return knn_classes_of_others(bank.values, bank.labels, queries, k=neighbours)[: len(predictions.values)]

    return (classes(dense) == dense.labels) & (classes(plan) != plan.labels)
