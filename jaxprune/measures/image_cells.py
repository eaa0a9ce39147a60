"""When two images are copies: the same pixels, or nearly the same means in all cells of a grid."""

import hashlib

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int, Shaped

DIGEST = 16  # bytes of `digest`
_CELLS = 8  # rows and columns of cells whose means are compared
_COARSE = 2  # of the search for candidates
# By how much the means of near copies differ at most, of 255: over all cells, and in a single one, which saving changes
# more where colours are saturated.
_LEVELS, _IN_A_CELL = 3.0, 16.0
_PAIRS = 4096  # compared at a time


def digest(image: Shaped[np.ndarray, "*sides c"]) -> bytes:
    """Returns a hash of the pixels of an image."""
    return hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=DIGEST).digest()


def cell_means(image: Shaped[np.ndarray, "*sides c"]) -> Float[np.ndarray, "rows columns c"]:
    """Returns the means of the cells of an image, or of all frames of a clip.

    >>> cell_means(np.full((24, 16, 3), 7, np.uint8)).shape
    (8, 8, 3)
    """
    frame = image.reshape(-1, *image.shape[-3:]).mean(0, dtype=np.float32)
    rows, columns = (np.linspace(0, side, min(_CELLS, side) + 1).astype(int)[:-1] for side in frame.shape[:2])
    sums = np.add.reduceat(np.add.reduceat(frame, rows, 0), columns, 1)
    sizes = np.outer(np.diff([*rows, frame.shape[0]]), np.diff([*columns, frame.shape[1]]))
    return (sums / sizes[..., None]).astype(np.float32)


def near_pairs(means: Float[np.ndarray, "n rows columns c"]) -> Int[np.ndarray, "m 2"]:
    """Returns the pairs of images with nearly the same means of cells."""
    pairs = scipy.spatial.KDTree(_coarse(means)).query_pairs(_LEVELS, p=np.inf, output_type="ndarray")
    return pairs[_alike(means, means, pairs)]


def near_any(
    means: Float[np.ndarray, "n rows columns c"], candidates: Float[np.ndarray, "m rows columns c"]
) -> Bool[np.ndarray, "n"]:
    """Returns which images have nearly the same means of cells as some of other images."""
    neighbours = scipy.spatial.KDTree(_coarse(candidates)).query_ball_point(_coarse(means), _LEVELS, p=np.inf)
    pairs = np.array(
        [(image, candidate) for image, close in enumerate(neighbours) for candidate in close], int
    ).reshape(-1, 2)
    alike = np.zeros(len(means), bool)
    alike[pairs[_alike(means, candidates, pairs), 0]] = True
    return alike


def _coarse(means: np.ndarray) -> Float[np.ndarray, "n d"]:
    halves = [np.array_split(np.arange(side), min(_COARSE, side)) for side in means.shape[1:3]]
    return np.concatenate(
        [means[:, rows][:, :, columns].mean((1, 2)) for rows in halves[0] for columns in halves[1]], 1
    )


def _alike(first: np.ndarray, second: np.ndarray, pairs: Int[np.ndarray, "m 2"]) -> Bool[np.ndarray, "m"]:
    alike = np.zeros(len(pairs), bool)
    for start in range(0, len(pairs), _PAIRS):
        left, right = pairs[start : start + _PAIRS].T
        differences = np.abs(first[left] - second[right])
        alike[start : start + _PAIRS] = (differences.mean((1, 2, 3)) <= _LEVELS) & (
            differences.max((1, 2, 3)) <= _IN_A_CELL
        )
    return alike
