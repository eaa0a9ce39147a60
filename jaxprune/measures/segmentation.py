"""Measures of label maps over a whole set: intersection over union, accuracy, Dice (mIoU, mAcc, aAcc)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from jaxprune.measures.intervals import Interval, drawn_with_replacement, percentile_interval
from jaxprune.ops.label_maps import IGNORED

DRAWS = 1000  # of the bootstrap


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


class Areas(NamedTuple):
    """What scores are made of, for each image: pixels of each class that are right, labelled, and predicted.

    Attributes:
      right, labelled, predicted: (n, k); labelled and predicted count pixels with a label only.
    """

    right: Int[np.ndarray, "n k"]
    labelled: Int[np.ndarray, "n k"]
    predicted: Int[np.ndarray, "n k"]

    @classmethod
    def of(cls, counts: Int[np.ndarray, "n k k"]) -> "Areas":
        """Returns the areas of confusion matrices."""
        return cls(np.diagonal(counts, axis1=1, axis2=2), counts.sum(2), counts.sum(1))


class ScoreIntervals(NamedTuple):
    """Scores of a set with 95 % intervals over its images; see `SegmentationScores`."""

    mean_iou: Interval
    mean_accuracy: Interval
    pixel_accuracy: Interval
    iou: tuple[Interval, ...]


def intervals(areas: Areas, *, draws: int = DRAWS, seed: int = 0) -> ScoreIntervals:
    """Returns the scores of a set of images with percentile intervals over draws of images with replacement.

    A draw without a class leaves it out of its mean, as a set without it does. Of a single image they are NaN.

    >>> areas = Areas.of(np.array([[[8, 2], [1, 9]], [[6, 4], [0, 10]]]))
    >>> value, low, high = intervals(areas).pixel_accuracy
    >>> round(value, 3), round(low, 3), round(high, 3)
    (0.825, 0.8, 0.85)

    Args:
      draws, seed: of the bootstrap.
    """
    count = len(areas.right)
    times = _times_drawn(count, draws, seed)
    of_draws = _of_sums(*(times @ area for area in areas))
    of_set = _of_sums(*(area.sum(0, keepdims=True) for area in areas))
    mean_iou, mean_accuracy, overall = (
        _interval(value[0], values, count) for value, values in zip(of_set[1:], of_draws[1:], strict=True)
    )
    iou = tuple(_interval(of_set[0][0, k], of_draws[0][:, k], count) for k in range(of_set[0].shape[1]))
    return ScoreIntervals(mean_iou, mean_accuracy, overall, iou)


def paired_intervals(first: Areas, second: Areas, *, draws: int = DRAWS, seed: int = 0) -> Interval:
    """Returns the difference of two mean IoUs of the same images, with its interval over draws of images."""
    times = _times_drawn(len(first.right), draws, seed)
    of_draws = _of_sums(*(times @ a for a in first))[1] - _of_sums(*(times @ b for b in second))[1]
    of_set = _of_sums(*(a.sum(0)[None] for a in first))[1] - _of_sums(*(b.sum(0)[None] for b in second))[1]
    return _interval(of_set[0], of_draws, len(first.right))


def image_scores(areas: Areas) -> Float[np.ndarray, "n"]:
    """Returns each image's own mean IoU over the classes that it has or that are predicted in it; NaN without any."""
    return _of_sums(*areas)[1]


def _times_drawn(count: int, draws: int, seed: int) -> Int[np.ndarray, "m n"]:
    """How often each image is in each draw of a bootstrap."""
    return np.stack([np.bincount(row, minlength=count) for row in drawn_with_replacement(count, draws, seed)])


def _of_sums(right: np.ndarray, labelled: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, ...]:
    """IoU by class (m, k), and mean IoU, mean accuracy and overall accuracy, each (m,), of summed areas (m, k)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        iou, accuracy = right / (labelled + predicted - right), right / labelled
        overall = right.sum(1) / labelled.sum(1)
    return iou, _row_means(iou), _row_means(accuracy), overall


def _row_means(values: np.ndarray) -> np.ndarray:
    present = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(present, values, 0.0).sum(1) / present.sum(1)


def _interval(value: float, draw_values: np.ndarray, count: int) -> Interval:
    defined = np.isfinite(value) and count > 1  # every draw of a single image is that image
    low, high = percentile_interval(draw_values) if defined else (float("nan"), float("nan"))
    return Interval(float(value), low, high)
