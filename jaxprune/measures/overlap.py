"""Overlap of two sets of kept patches: intersection over area and over union, with bounds and values by chance.

"Which Tokens to Use?" (Haurum et al., 2023), Sec. 5.1 and 5.2, supplement E (Eq. 1, 2) and F (Alg. 1, 2).
"""

import functools
import math

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

RESCALED = "0 = by chance, 1 = the same"  # the scale of `over_chance`


def as_masks(ids: Int[np.ndarray, "*n k"], num_patches: int) -> Bool[np.ndarray, "*n p"]:
    """Returns True where a patch is among the ids; -1, a row that is not a single patch, is ignored.

    >>> as_masks(np.array([[2, 0, -1]]), 4)
    array([[ True, False,  True, False]])

    Args:
      ids: patch indices, in any order.
      num_patches: p.
    """
    ids = np.asarray(ids)
    masks = np.zeros((*ids.shape[:-1], num_patches + 1), bool)
    np.put_along_axis(masks, np.where(ids < 0, num_patches, ids), True, axis=-1)
    return masks[..., :-1]


def intersection_over_area(masks: Bool[np.ndarray, "*n p"], fewer: Bool[np.ndarray, "*n p"]) -> Float[np.ndarray, "*n"]:
    """Returns the share of patches of the smaller set that are also in the other set (Eq. 1).

    >>> intersection_over_area(np.array([[True, True, True, False]]), np.array([[True, False, False, True]]))
    array([0.5])

    Args:
      masks: True on the patches of the larger set, that of the higher keep rate.
      fewer: the same of the smaller set.
    """
    return (masks & fewer).sum(-1) / np.maximum(fewer.sum(-1), 1)


def intersection_over_union(
    masks: Bool[np.ndarray, "*n p"], second: Bool[np.ndarray, "*n p"]
) -> Float[np.ndarray, "*n"]:
    """Returns the share of the patches of either set that are in both (Eq. 2); 0 for empty sets."""
    return (masks & second).sum(-1) / np.maximum((masks | second).sum(-1), 1)


def least_ioa(count: int, fewer: int, num_patches: int) -> float:
    """Returns the lowest intersection over area that sets of these sizes can have (Alg. 1); 0 for an empty smaller set.

    They share at least the patches by which their sizes exceed the grid. Sizes are actual numbers of kept patches:
    those of fixed radial patterns differ from the plan's, and for ATS the plan's are only bounds. EViT's fused row does
    not count.

    >>> least_ioa(137, 98, 196)
    0.3979591836734694

    Args:
      count, fewer: number of patches of the larger and of the smaller set.
      num_patches: number of patches of the image.
    """
    return max(0, count + fewer - num_patches) / max(fewer, 1)


def least_iou(count: int, second_count: int, num_patches: int) -> float:
    """Returns the lowest intersection over union that sets of these sizes can have (Alg. 2)."""
    # If they must share patches, their union is all patches.
    return max(0, count + second_count - num_patches) / max(num_patches, 1)


def chance_ioa(count: int, num_patches: int) -> float:
    """Returns the expected intersection over area of a set that is not empty with a random set of `count` patches."""
    return count / max(num_patches, 1)


@functools.lru_cache(maxsize=1 << 16)
def chance_iou(count: int, second_count: int, num_patches: int) -> float:
    """Returns the expected intersection over union of two random sets of these sizes.

    >>> round(chance_iou(98, 98, 196), 3)
    0.334
    """
    if not min(count, second_count):
        return 0.0
    shared = np.arange(max(0, count + second_count - num_patches), min(count, second_count) + 1)
    chances = scipy.stats.hypergeom.pmf(shared, num_patches, count, second_count)
    return float((chances * shared / np.maximum(count + second_count - shared, 1)).sum())


def over_chance(value: float, chance: float) -> float:
    """Returns an overlap on a scale from 0 = by chance to 1 = the same; NaN if chance is 1, as if nothing is dropped.

    >>> over_chance(0.75, 0.5)
    0.5
    """
    return (value - chance) / (1 - chance) if 1 - chance > 1e-9 else math.nan
