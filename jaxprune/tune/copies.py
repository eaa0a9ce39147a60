"""Copies among images: the guarantee of a tuning holds for independent images, and each copy would count as one.

Copies have the same pixels. Near copies, such as a file saved again, have nearly the same means in all cells of a grid.
"""

import hashlib
from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

from jaxprune.evaluate import Batch
from jaxprune.train import interrupt

_CELLS = 8  # rows and columns of cells whose means are compared
_COARSE = 2  # of the search for candidates
# By how much the means of near copies differ at most, of 255: over all cells, and in a single one, which saving changes
# more where colours are saturated.
_LEVELS, _IN_A_CELL = 3.0, 16.0
_PAIRS = 4096  # compared at a time


def first_of_copies(show: Callable[[np.ndarray], Iterable[Batch]], count: int) -> Int[np.ndarray, "n"]:
    """Returns the index of the first image among the copies and near copies of each image, its own without any.

    Args:
      show: indices of images -> batches with `image`, (b, …, h, w, c) with pixels from 0 to 255.
      count: the number of images.
    """
    firsts: dict[bytes, int] = {}
    first, means, number = np.arange(count), [], 0
    for batch in show(np.arange(count)):
        interrupt.check()
        valid = np.asarray(batch.get("valid", np.ones(len(batch["image"]), bool)))
        for image in np.asarray(batch["image"])[valid]:
            pixels = np.ascontiguousarray(image)
            digest = hashlib.blake2b(pixels.tobytes(), digest_size=16).digest()
            first[number] = firsts.setdefault(digest, number)
            if first[number] == number:
                means.append(_means(pixels))
            number += 1
    distinct = np.flatnonzero(first == np.arange(count))
    return distinct[_near(np.stack(means))][np.searchsorted(distinct, first)]


def _means(image: np.ndarray) -> Float[np.ndarray, "r c d"]:
    """The means of the cells of an image, or of all frames of a clip."""
    frame = image.reshape(-1, *image.shape[-3:]).mean(0, dtype=np.float32)
    rows, columns = (np.linspace(0, side, min(_CELLS, side) + 1).astype(int)[:-1] for side in frame.shape[:2])
    sums = np.add.reduceat(np.add.reduceat(frame, rows, 0), columns, 1)
    sizes = np.outer(np.diff([*rows, frame.shape[0]]), np.diff([*columns, frame.shape[1]]))
    return (sums / sizes[..., None]).astype(np.float32)


def _near(means: Float[np.ndarray, "n r c d"]) -> Int[np.ndarray, "n"]:
    """Returns the index of the first of the near copies of each."""
    count = len(means)
    halves = [np.array_split(np.arange(side), min(_COARSE, side)) for side in means.shape[1:3]]
    quarters = [means[:, rows][:, :, columns].mean((1, 2)) for rows in halves[0] for columns in halves[1]]
    coarse = np.concatenate(quarters, axis=1)
    pairs = KDTree(coarse).query_pairs(_LEVELS, p=np.inf, output_type="ndarray")
    alike = np.zeros(len(pairs), bool)
    for start in range(0, len(pairs), _PAIRS):
        left, right = pairs[start : start + _PAIRS].T
        apart = np.abs(means[left] - means[right])
        alike[start : start + _PAIRS] = (apart.mean((1, 2, 3)) <= _LEVELS) & (apart.max((1, 2, 3)) <= _IN_A_CELL)
    left, right = pairs[alike].T
    graph = coo_array((np.ones(len(left)), (left, right)), shape=(count, count))
    groups = connected_components(graph, directed=False)[1]
    return np.unique(groups, return_index=True)[1][groups]
