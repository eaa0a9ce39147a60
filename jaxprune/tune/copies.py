"""Copies among images: the guarantee of a tuning holds for independent images, and each copy would count as one.

Copies have the same pixels. Near copies by pixels, such as a file saved again, have nearly the same means in all cells
of a grid. Near copies by features, such as a mirrored or a brighter one, are as good as equal to the network, and have
the same pattern of cells, as it is or mirrored, up to brightness and contrast.
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
_ROWS = 1024  # of a matrix of similarities, at a time
# The least cosine of near copies: of their features about the mean of all, and of the patterns of their cells.
_FEATURES, _PATTERN = 0.9, 0.95


def first_of_copies(
    show: Callable[[np.ndarray], Iterable[Batch]], count: int, features: Float[np.ndarray, "n d"] | None = None
) -> Int[np.ndarray, "n"]:
    """Returns the index of the first image among the copies and near copies of each image, its own without any.

    Args:
      show: indices of images -> batches with `image`, (b, …, h, w, c) with pixels from 0 to 255.
      count: the number of images.
      features: of the images, by the network; without them near copies are found by pixels alone.
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
    cells = np.stack(means)
    pairs = [_near_by_pixels(cells)]
    if features is not None:
        pairs.append(_near_by_features(np.asarray(features, np.float32)[distinct], cells))
    return distinct[_first_of_groups(np.concatenate(pairs), len(cells))][np.searchsorted(distinct, first)]


def _means(image: np.ndarray) -> Float[np.ndarray, "r c d"]:
    """The means of the cells of an image, or of all frames of a clip."""
    frame = image.reshape(-1, *image.shape[-3:]).mean(0, dtype=np.float32)
    rows, columns = (np.linspace(0, side, min(_CELLS, side) + 1).astype(int)[:-1] for side in frame.shape[:2])
    sums = np.add.reduceat(np.add.reduceat(frame, rows, 0), columns, 1)
    sizes = np.outer(np.diff([*rows, frame.shape[0]]), np.diff([*columns, frame.shape[1]]))
    return (sums / sizes[..., None]).astype(np.float32)


def _near_by_pixels(means: Float[np.ndarray, "n r c d"]) -> Int[np.ndarray, "m 2"]:
    """Returns the pairs of images with nearly the same means of cells."""
    halves = [np.array_split(np.arange(side), min(_COARSE, side)) for side in means.shape[1:3]]
    quarters = [means[:, rows][:, :, columns].mean((1, 2)) for rows in halves[0] for columns in halves[1]]
    coarse = np.concatenate(quarters, axis=1)
    pairs = KDTree(coarse).query_pairs(_LEVELS, p=np.inf, output_type="ndarray")
    alike = np.zeros(len(pairs), bool)
    for start in range(0, len(pairs), _PAIRS):
        left, right = pairs[start : start + _PAIRS].T
        apart = np.abs(means[left] - means[right])
        alike[start : start + _PAIRS] = (apart.mean((1, 2, 3)) <= _LEVELS) & (apart.max((1, 2, 3)) <= _IN_A_CELL)
    return pairs[alike]


def _near_by_features(
    features: Float[np.ndarray, "n d"], means: Float[np.ndarray, "n r c d"]
) -> Int[np.ndarray, "m 2"]:
    """Returns the pairs of images with nearly the same features and pattern.

    Features alone would not do: those of an untrained network are much the same for all images.
    """
    features = _unit(features - features.mean(0))
    pattern = means - means.mean((1, 2, 3), keepdims=True)
    patterns = [_unit(cells.reshape(len(cells), -1)) for cells in (pattern, pattern[:, :, ::-1])]
    pairs = []
    for start in range(0, len(features), _ROWS):
        rows = slice(start, start + _ROWS)
        near = features[rows] @ features.T >= _FEATURES
        same, mirrored = (patterns[0][rows] @ turned.T for turned in patterns)
        left, right = np.nonzero(near & (np.maximum(same, mirrored) >= _PATTERN))
        pairs.append(np.stack([left + start, right], 1)[left + start < right])
    return np.concatenate(pairs)


def _unit(rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def _first_of_groups(pairs: Int[np.ndarray, "m 2"], count: int) -> Int[np.ndarray, "n"]:
    """Returns for each of `count` images the first of those that pairs connect with it."""
    left, right = pairs.T
    graph = coo_array((np.ones(len(left)), (left, right)), shape=(count, count))
    groups = connected_components(graph, directed=False)[1]
    return np.unique(groups, return_index=True)[1][groups]
