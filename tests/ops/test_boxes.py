"""Boxes, anchors, matching and sampling against the published numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import golden, in_names

from jaxprune.ops import boxes
from jaxprune.ops.anchors import anchors, cell_anchors
from jaxprune.ops.box_matching import NEGATIVE, drawn_first, match, sample
from jaxprune.ops.roi_align import levels_of

corners = st.lists(st.floats(0, 500, width=32), min_size=4, max_size=4)


def close(array, expected, tolerance=1e-6):
    expected = np.asarray(expected)
    np.testing.assert_allclose(array, expected, atol=tolerance * np.abs(expected).max(initial=0), rtol=0)


def test_offsets_and_their_inverse_match():
    file = golden("dense/det_box_coder")
    start, target = jnp.asarray(file["in/src"]), jnp.asarray(file["in/dst"])
    kinds = in_names(file, r"in/(\w+)/weights")
    assert len(kinds) > 1
    for kind in kinds:
        factors = file[f"in/{kind}/weights"].tolist()
        offsets = boxes.encode(start, target, factors)
        close(offsets, file[f"out/{kind}/deltas"])
        close(boxes.decode(start, offsets, factors), file[f"out/{kind}/round_trip"])
        (several,) = in_names(file, rf"in/{kind}/(deltas_\d+_classes)")
        decoded = boxes.decode(start, jnp.asarray(file[f"in/{kind}/{several}"]), factors)
        close(decoded, file[f"out/{kind}/{several.replace('deltas', 'boxes')}"])
    assert float(file["out/scale_clamp"]) == boxes.MAX_LOG_RATIO


@given(corners, corners)
@settings(max_examples=30, deadline=None)
def test_offsets_lead_back(first, second):
    order = lambda values: jnp.asarray([[min(values[0], values[2]), min(values[1], values[3])]], jnp.float32)
    wide = lambda values: jnp.abs(jnp.asarray([[values[0] - values[2], values[1] - values[3]]], jnp.float32)) + 1.0
    start, target = (jnp.concatenate([order(part), order(part) + wide(part)], axis=1) for part in (first, second))
    offsets = boxes.encode(start, target)
    if np.abs(offsets[:, 2:]).max() < 5 * boxes.MAX_LOG_RATIO:
        np.testing.assert_allclose(boxes.decode(start, offsets), target, atol=2e-2)


@given(st.lists(corners, min_size=3, max_size=3))
@settings(max_examples=30, deadline=None)
def test_overlap_is_symmetric_and_one_with_itself(several):
    array = np.asarray(several, np.float32).reshape(-1, 2, 2)
    array = jnp.asarray(np.concatenate([array.min(1), array.max(1) + 0.5], axis=1))
    overlaps = np.asarray(boxes.iou(array, array))
    np.testing.assert_allclose(overlaps, overlaps.T, atol=1e-6)
    np.testing.assert_allclose(np.diag(overlaps), 1, atol=1e-5)
    assert overlaps.min() >= 0


def test_boxes_without_area_overlap_nothing():
    flat, box = jnp.array([[1.0, 1, 1, 3]]), jnp.array([[0.0, 0, 4, 4]])
    assert float(boxes.iou(flat, box)[0, 0]) == 0 and not boxes.nonempty(flat)[0] and boxes.nonempty(box)[0]
    assert not boxes.nonempty(jnp.array([[jnp.nan, 0, 1, 1]]))[0]
    assert boxes.clip(jnp.array([[-3.0, 2, 9, 9]]), jnp.array([5.0, 7.0])).tolist() == [[0, 2, 7, 5]]


def test_anchors_match():
    file = golden("dense/det_anchors")
    ratios = file["in/aspect_ratios_h_over_w"].tolist()
    levels = zip(*(file[f"in/{key}"].tolist() for key in ("grids", "strides", "sizes")), strict=True)
    for level, (grid, stride, size) in enumerate(levels):
        rows = anchors((grid, grid) if isinstance(grid, int) else tuple(grid), stride, (size,), ratios)
        close(rows, file[f"out/level{level}"])
        close(cell_anchors((size,), ratios), file[f"out/cell{level}"])
    expected = file["out/offset_half_two_sizes"]
    close(anchors(*cells_of(expected, 2 * len(ratios), 0.5), ratios, offset=0.5), expected)


def cells_of(rows, per_place, offset):
    """The grid, stride and sizes that anchors in order were made for; two sizes, and in the first place all shapes."""
    first = rows[:: per_place // 2]
    centres = (first[:, :2] + first[:, 2:]) / 2
    grid = tuple(len(np.unique(centres[:, axis].round(4))) for axis in (1, 0))
    return grid, float(centres[0, 0]) / offset, np.sqrt(np.prod(first[:2, 2:] - first[:2, :2], axis=1)).tolist()


KINDS = {"rpn": {"low": 0.3, "high": 0.7, "low_quality": True}, "roi": {"low": 0.5, "high": 0.5}}


@pytest.mark.parametrize("kind", KINDS)
def test_matches(kind):
    file = golden("dense/det_matcher")
    close(boxes.iou(jnp.asarray(file["in/gt"]), jnp.asarray(file["in/boxes"], jnp.float32)), file["out/iou"])
    overlaps = jnp.asarray(file["out/iou"], jnp.float32)
    count = len(overlaps)
    for padding in (0, 3):
        padded = jnp.pad(overlaps, ((0, padding), (0, 0)), constant_values=1.0)
        for valid, place in ((count, ""), (0, "no_gt/")):
            objects, labels = match(padded, jnp.arange(count + padding) < valid, **KINDS[kind])
            np.testing.assert_array_equal(objects, file[f"out/{kind}/{place}matched_gt"])
            np.testing.assert_array_equal(labels, file[f"out/{kind}/{place}label"])


def test_samples():
    file = golden("dense/det_matcher")
    overlaps = jnp.asarray(file["out/iou"], jnp.float32)
    labels = match(overlaps, jnp.ones(len(overlaps), bool), **KINDS["rpn"]).labels
    keys = jnp.asarray(file["in/keys"], jnp.float32)
    drawn = in_names(file, r"out/sample_(\d+)_([\d.]+)/positive")
    assert drawn
    for num, share in drawn:
        sampled = sample(labels, keys, int(num), float(share))
        positive, negative = (file[f"out/sample_{num}_{share}/{kind}"] for kind in ("positive", "negative"))
        np.testing.assert_array_equal(np.flatnonzero(sampled.positive), positive)
        np.testing.assert_array_equal(np.flatnonzero(sampled.negative), negative)
        ids, taken = drawn_first(sampled, keys, int(num))
        by_key = [part[np.argsort(file["in/keys"][part])] for part in (positive, negative)]
        np.testing.assert_array_equal(ids[taken], np.concatenate(by_key))
    places, taken = drawn_first(sample(labels * NEGATIVE - 1, keys, 4, 0.5), keys, 400)
    assert places.shape == taken.shape == (400,) and not taken.any()


def test_levels_match():
    file = golden("dense/det_roi_align")
    rois = np.concatenate([file[f"in/pooler/boxes_image{i}"] for i in in_names(file, r"in/pooler/boxes_image(\d+)")])
    levels = sorted(int(level) for level in in_names(file, r"in/pooler/p(\d+)"))
    np.testing.assert_array_equal(
        jax.jit(levels_of, static_argnums=(1, 2))(jnp.asarray(rois), levels[0], levels[-1]), file["out/pooler/level"]
    )
