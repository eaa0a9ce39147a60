"""Measures of label maps over a whole set: intersection over union, accuracy, Dice (mIoU, mAcc, aAcc)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

IGNORED = 255


def confusion(
    labels: Shaped[np.ndarray, "*places"],
    predictions: Shaped[np.ndarray, "*places"],
    num_classes: int,
    *,
    ignored: int = IGNORED,
) -> Int[np.ndarray, "k k"]:
    """Counts the pixels of each label (row) and prediction (column); add up the counts of all images.

    >>> confusion(np.array([0, 1, 1, 255]), np.array([0, 0, 1, 1]), 2).tolist()
    [[1, 0], [1, 1]]

    Args:
      labels: the class of each pixel; those of `ignored` are not counted.
      predictions: of the same shape, classes below `num_classes`.
    """
    valid = np.asarray(labels) != ignored
    rows, columns = np.asarray(labels)[valid].astype(np.int64), np.asarray(predictions)[valid].astype(np.int64)
    return np.bincount(rows * num_classes + columns, minlength=num_classes**2).reshape(num_classes, num_classes)


class SegmentationScores(NamedTuple):
    """Scores in [0, 1]; papers print percent.

    A class that is neither labelled nor predicted is NaN and not part of a mean; a class that is only predicted has an
    IoU of 0, and an accuracy of NaN.

    Attributes:
      iou, accuracy, dice: per class.
      mean_iou, mean_accuracy, mean_dice: their means over classes (mIoU, mAcc, mDice).
      pixel_accuracy: the share of labelled pixels that are right (aAcc).
    """

    iou: Float[np.ndarray, "k"]
    accuracy: Float[np.ndarray, "k"]
    dice: Float[np.ndarray, "k"]
    mean_iou: float
    mean_accuracy: float
    mean_dice: float
    pixel_accuracy: float


def scores(counts: Int[np.ndarray, "k k"]) -> SegmentationScores:
    """Returns the scores of a confusion matrix, as `confusion` counts it.

    >>> round(scores(np.array([[1, 0], [1, 1]])).mean_iou, 3)
    0.5
    """
    right, labelled, predicted = np.diag(counts), counts.sum(1), counts.sum(0)
    with np.errstate(invalid="ignore"):
        iou = right / (labelled + predicted - right)
        accuracy = right / labelled
        dice = 2 * right / (labelled + predicted)
        overall = float(right.sum() / counts.sum())
    return SegmentationScores(iou, accuracy, dice, _mean(iou), _mean(accuracy), _mean(dice), overall)


def _mean(values: Float[np.ndarray, "k"]) -> float:
    """The mean without NaN; NaN of none."""
    present = values[~np.isnan(values)]
    return float(present.mean()) if present.size else float("nan")
