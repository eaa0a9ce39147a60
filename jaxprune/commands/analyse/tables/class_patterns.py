"""Patterns of reduction by class: rows in use, depth, and distance of kept patches from the centre.

With fixed counts, every image keeps equally many patches: then only their place can depend on the class. Plans with
ATS also choose how many rows an image gets.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxprune.commands.analyse.tables.spatial import centre_distance
from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.evaluate.collectors.token_counts import distinct_rows

RATE, DEPTH, DISTANCE = "rows in use", "depth", "centre distance"
_SAME = 1e-9  # measures with a smaller range do not differ between images


def class_rows(observations: Sequence[Observed], class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns a row per plan and class: the mean over its images of each measure that differs between images.

    `rows in use` is the number of rows after the last step as a share of the patches, `depth` the mean number of blocks
    that patches pass, `centre distance` the mean distance of kept patches from the centre, relative to that of all.

    Args:
      observations: members of any networks.
      class_names: of the data.
    """
    rows = []
    for observed in observations:
        member, measured = observed.member, image_values(observed)
        if not measured:
            continue
        for number, in_class in _classes(observed["label"]):
            start = {"network": member.network, "plan": member.plan, "class": class_names[number]}
            means = {name: float(values[in_class].mean()) for name, values in measured.items()}
            rows.append({**start, "images": int(in_class.sum()), **means})
    return rows


def image_values(observed: Observed) -> dict[str, np.ndarray]:
    """Returns the measures that differ between images, {name: values, (n,)}."""
    member, values = observed.member, {}
    if not member.layers:
        return values
    last, grid = observed.patterns.assign[-1], member.grids[-1]
    values[RATE] = distinct_rows(last) / last.shape[1]
    if observed.keeps and len(set(member.grids)) == 1:
        values[DEPTH] = observed.patterns.depths().mean(1)
    if observed.keeps and len(grid) == 2:
        values[DISTANCE] = centre_distance(observed.patterns.masks[-1], (grid[0], grid[1]))
    return {name: measure for name, measure in values.items() if np.ptp(measure) > _SAME}


def explained(values: np.ndarray, labels: np.ndarray) -> float:
    """Returns the share of the variance between images that their classes explain, η².

    With k classes and n images, it is (k - 1)/(n - 1) on average if classes play no role.

    >>> explained(np.array([1.0, 1.0, 3.0, 3.0]), np.array([0, 0, 1, 1]))
    1.0

    Args:
      values: one per image, (n,), not all equal.
      labels: the class of each image, (n,).
    """
    _, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.bincount(places, values) / counts
    return float((counts * (means - values.mean()) ** 2).sum() / ((values - values.mean()) ** 2).sum())


def _classes(labels: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each class that occurs with its images, (n,); labels are (n,), negative = none, or (n, c)."""
    if labels.ndim > 1:
        yield from ((number, labels[:, number] > 0) for number in np.flatnonzero((labels > 0).any(0)).tolist())
    else:
        yield from ((int(number), labels == number) for number in np.unique(labels[labels >= 0]))
