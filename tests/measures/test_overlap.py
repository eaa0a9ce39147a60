"""Overlap of kept sets, its bounds and what chance makes of it."""

import json

import numpy as np
from support import golden, in_names

from jaxprune.measures import overlap


def test_published_sets():
    file = golden("token_reduction/metric_sets")
    patches = json.loads(str(file["config"]))["P"]
    for case in in_names(file, r"ioa_(\d+)"):
        more, fewer = (overlap.as_masks(file[f"kept{side}_{case}"], patches) for side in (1, 2))
        assert abs(overlap.intersection_over_area(more, fewer) - file[f"ioa_{case}"]) < 1e-6
        assert abs(overlap.intersection_over_union(more, fewer) - file[f"iou_{case}"]) < 1e-6


def test_published_lower_bounds_exactly():
    for patches, *_, count, fewer, ioa, iou in golden("token_reduction/metric_lower_bounds")["table"]:
        counts = int(count), int(fewer), int(patches)
        assert overlap.least_ioa(*counts) == ioa and overlap.least_iou(*counts) == iou


def test_rows_that_are_no_patch_are_ignored_and_empty_sets_share_nothing():
    masks = overlap.as_masks(np.array([[3, -1, 0], [-1, -1, -1]]), 4)
    np.testing.assert_array_equal(masks, [[True, False, False, True], [False] * 4])
    np.testing.assert_array_equal(overlap.intersection_over_area(masks, masks), [1, 0])
    np.testing.assert_array_equal(overlap.intersection_over_union(masks, masks), [1, 0])


def test_sets_are_between_the_bound_and_chance_is_their_mean():
    rng = np.random.default_rng(0)
    more, fewer = (
        overlap.as_masks(np.stack([rng.permutation(10)[:count] for _ in range(4000)]), 10) for count in (7, 5)
    )
    for found, least, chance in (
        (overlap.intersection_over_area(more, fewer), overlap.least_ioa(7, 5, 10), overlap.chance_ioa(7, 10)),
        (overlap.intersection_over_union(more, fewer), overlap.least_iou(7, 5, 10), overlap.chance_iou(7, 5, 10)),
    ):
        assert found.min() == least
        np.testing.assert_allclose(found.mean(), chance, atol=0.01)


def test_empty_sets_have_bounds_and_chances_of_zero():
    for count, fewer, patches in ((9, 0, 36), (0, 0, 36), (0, 9, 36), (0, 0, 0)):
        assert overlap.least_ioa(count, fewer, patches) == overlap.least_iou(count, fewer, patches) == 0
        assert overlap.chance_iou(count, fewer, patches) == 0
    assert overlap.chance_ioa(0, 36) == overlap.chance_ioa(0, 0) == 0
