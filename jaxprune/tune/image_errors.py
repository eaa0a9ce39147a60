"""What a plan risks: on each image, whether it still answers what the dense network does.

Agreement needs no labels. A classifier agrees where it predicts the same class. Features agree where they still
retrieve what the dense ones do: among dense features of the images that estimate, the nearest to the plan's is one of
the k nearest to the dense network's own. Those images test nothing, so errors of images that do are independent.

Lost accuracy needs labels: an error is an image that the dense network gets right and the plan wrong. Accuracy falls
by no more than the share of those, as it gains others. Without a classifier the k nearest vote.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from jaxprune.analysis.knn import knn_classes, knn_classes_of_others, nearest
from jaxprune.errors import UserError


class Answers(NamedTuple):
    """What a network makes of images.

    Attributes:
      values: predicted classes (n,), or features (n, d).
      labels: of the images, -1 where there is none.
    """

    values: Shaped[np.ndarray, "n *d"]
    labels: Int[np.ndarray, "n"]

    def __getitem__(self, part):  # pyright: ignore[reportIncompatibleMethodOverride]
        return Answers(self.values[part], self.labels[part])


def agreement_errors(
    dense: Answers, plan: Answers, bank: Answers, *, neighbours: int, own: bool
) -> Bool[np.ndarray, "n"]:
    """Returns where a plan does not agree with the dense network.

    >>> bank = Answers(np.eye(3, dtype=np.float32), np.zeros(3, int))
    >>> dense, plan = (Answers(np.array([row], np.float32), np.zeros(1, int)) for row in ([1, 0.2, 0], [0.2, 1, 0]))
    >>> [bool(agreement_errors(dense, plan, bank, neighbours=k, own=False)[0]) for k in (1, 2)]
    [True, False]

    Args:
      dense, plan: answers of the same images.
      bank: the dense network's, of the images that are retrieved; a classifier needs none.
      neighbours: k.
      own: whether the images are the first of the bank, where none retrieves itself.
    """
    if dense.values.ndim == 1:
        return dense.values != plan.values
    wanted = _retrieved(bank.values, dense.values, neighbours, own)
    return ~(_retrieved(bank.values, plan.values, 1, own) == wanted).any(1)


def accuracy_errors(
    dense: Answers, plan: Answers, bank: Answers, *, neighbours: int, own: bool
) -> Bool[np.ndarray, "n"]:
    """Returns where the dense network is right and a plan is wrong; the arguments are those of `agreement_errors`.

    Raises:
      UserError: images have no label.
    """
    if (dense.labels < 0).any() or (bank.labels < 0).any():
        raise UserError("Some images have no class, so accuracy cannot be bounded: bound agreement, or label them.")

    def classes(answers: Answers) -> np.ndarray:
        if answers.values.ndim == 1:
            return answers.values
        if not own:
            return knn_classes(bank.values, bank.labels, answers.values, k=neighbours)
        if len(answers.values) == len(bank.values):
            return knn_classes_of_others(bank.values, bank.labels, answers.values, k=neighbours)
        # Others of the bank follow, so that its size is that of the queries.
        rest = bank.values[len(answers.values) :]
        queries = np.concatenate([answers.values, rest])
        return knn_classes_of_others(bank.values, bank.labels, queries, k=neighbours)[: len(answers.values)]

    return (classes(dense) == dense.labels) & (classes(plan) != plan.labels)


def _retrieved(
    bank: Float[np.ndarray, "m d"], queries: Float[np.ndarray, "n d"], k: int, own: bool
) -> Int[np.ndarray, "n k"]:
    """The rows of the k nearest of a bank, without the query's own where it is the first of the bank."""
    if not own:
        return nearest(bank, queries, k=k)
    near = nearest(bank, queries, k=k + 1)
    itself = near == np.arange(len(near))[:, None]
    itself[:, -1] |= ~itself.any(1)
    return near[~itself].reshape(len(near), -1)
