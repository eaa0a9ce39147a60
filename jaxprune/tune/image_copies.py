"""Copies among images: the guarantee of a tuning holds for independent images, and each copy would count as one.

Copies have the same pixels. Near copies by pixels, such as a file saved again, have nearly the same means in all cells
of a grid. Near copies by features, such as a mirrored or a brighter one, are as good as equal to the network, and have
the same pattern of cells, as it is or mirrored, up to brightness and contrast.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import scipy
from jaxtyping import Float, Int

from jaxprune.errors import UserError
from jaxprune.evaluate import Batch
from jaxprune.measures.image_cells import cell_means, digest, near_pairs
from jaxprune.train import interrupt

UNREADABLE = -1

_ROWS = 1024  # of a matrix of similarities, at a time
# The least cosine of near copies: of their features about the mean of all, and of the patterns of their cells.
_FEATURES, _PATTERN = 0.9, 0.95


def first_of_copies(
    show: Callable[[np.ndarray], Iterable[Batch]], count: int, features: Float[np.ndarray, "n d"] | None = None
) -> Int[np.ndarray, "n"]:
    """Returns the index of the first image among the copies and near copies of each image, its own without any.

    Images that cannot be read have `UNREADABLE`.

    Raises:
      UserError: no image can be read.

    Args:
      show: indices of images -> batches with `image`, (b, …, h, w, c) with pixels from 0 to 255, and `valid`, which is
        False where an image cannot be read; without it all can.
      count: the number of images.
      features: of the images that can be read, by the network; without them near copies are found by pixels alone.
    """
    firsts: dict[bytes, int] = {}
    first, means = np.full(count, UNREADABLE), []
    for number, image in enumerate(in_order(show, count)):
        if image is None:
            continue
        first[number] = firsts.setdefault(digest(image), number)
        if first[number] == number:
            means.append(cell_means(image))
    (readable,) = np.nonzero(first != UNREADABLE)
    if not len(readable):
        raise UserError(f"None of the {count} images can be read: see the warnings above.")
    distinct = np.flatnonzero(first == np.arange(count))
    cells = np.stack(means)
    pairs = [near_pairs(cells)]
    if features is not None:
        rows = np.searchsorted(readable, distinct)
        pairs.append(_near_by_features(np.asarray(features, np.float32)[rows], cells))
    groups = distinct[_first_of_groups(np.concatenate(pairs), len(cells))]
    first[readable] = groups[np.searchsorted(distinct, first[readable])]
    return first


def in_order(show: Callable[[np.ndarray], Iterable[Batch]], count: int) -> Iterator[np.ndarray | None]:
    """Yields all images in order; None for one that cannot be read, in whose place its batch holds another."""
    rows = (
        (image, valid)
        for batch in show(np.arange(count))
        for image, valid in zip(
            np.asarray(batch["image"]), batch.get("valid", np.ones(len(batch["image"]), bool)), strict=True
        )
    )
    for image, valid in itertools.islice(rows, count):
        interrupt.check()
        yield image if valid else None


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
        similar_features = features[rows] @ features.T >= _FEATURES
        same, mirrored = (patterns[0][rows] @ turned.T for turned in patterns)
        left, right = np.nonzero(similar_features & (np.maximum(same, mirrored) >= _PATTERN))
        pairs.append(np.stack([left + start, right], 1)[left + start < right])
    return np.concatenate(pairs)


def _unit(rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def _first_of_groups(pairs: Int[np.ndarray, "m 2"], count: int) -> Int[np.ndarray, "n"]:
    """Returns for each of `count` images the first of those that pairs connect with it."""
    left, right = pairs.T
    graph = scipy.sparse.coo_array((np.ones(len(left)), (left, right)), shape=(count, count))
    groups = scipy.sparse.csgraph.connected_components(graph, directed=False)[1]
    return np.unique(groups, return_index=True)[1][groups]
