"""ROIAlign against the published numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import golden, in_names, nhwc, quick_compile

from jaxprune.ops.roi_align import axis_weights, pool, roi_align

FILE = golden("dense/det_roi_align")


def close(array, expected, tolerance=1e-5):
    np.testing.assert_allclose(array, expected, atol=tolerance * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("kind, bins, ratio", in_names(FILE, r"out/(aligned|not_aligned)_(\d+)_(\d+)"))
def test_features_and_gradients_match(kind, bins, ratio):
    maps, rois = jnp.asarray(nhwc(FILE["in/feature"])), FILE["in/rois_batch_x0_y0_x1_y1"]
    options = {"scale": float(FILE["in/spatial_scale"]), "sampling_ratio": int(ratio), "aligned": kind == "aligned"}
    order = np.argsort(rois[:, 0], kind="stable")

    def features(maps):
        boxes = [jnp.asarray(rois[rois[:, 0] == image, 1:]) for image in range(len(maps))]
        return jnp.concatenate(
            [roi_align(part, own, int(bins), **options) for part, own in zip(maps, boxes, strict=True)]
        )

    program = lambda call: jax.jit(call, compiler_options=quick_compile())
    pooled = program(features)(maps)
    close(pooled, nhwc(FILE[f"out/{kind}_{bins}_{ratio}"])[order])
    if kind == "aligned" and (key := f"out/grad_{bins}_{ratio}") in FILE:
        cotangent = nhwc(FILE[f"in/cotangent_{bins}_{ratio}"])[order]
        close(program(jax.grad(lambda maps: (features(maps) * cotangent).sum()))(maps), nhwc(FILE[key]))


@pytest.mark.slow
def test_boxes_read_the_level_of_their_size():
    levels = sorted(int(level) for level in in_names(FILE, r"in/pooler/p(\d+)"))
    strides = [2**level for level in levels]
    expected, parts = nhwc(FILE["out/pooler/pooled"]), []
    for image in in_names(FILE, r"in/pooler/boxes_image(\d+)"):
        pyramid = [jnp.asarray(nhwc(FILE[f"in/pooler/p{level}"])[int(image)]) for level in levels]
        boxes = jnp.asarray(FILE[f"in/pooler/boxes_image{image}"])
        program = jax.jit(
            lambda maps, boxes: pool(maps, boxes, expected.shape[1], strides=strides), compiler_options=quick_compile()
        )
        parts.append(program(pyramid, boxes))
    close(np.concatenate(parts), expected)


def slowly(start, end, size, bins, ratio, aligned):
    """The published loop over samples, in float32."""
    start, end, half = np.float32(start), np.float32(end), np.float32(0.5 if aligned else 0)
    start, end = start - half, end - half
    step = (end - start if aligned else max(end - start, np.float32(1))) / np.float32(bins)
    count = ratio or int(np.ceil(step))
    weights = np.zeros((bins, size))
    for part in range(bins):
        for sample in range(count):
            y = start + np.float32(part) * step + np.float32(sample + 0.5) * step / np.float32(count)
            if not -1 <= y <= size:
                continue
            y = max(y, 0)
            low = min(int(y), size - 1)
            rest = 0 if low == size - 1 else y - low
            weights[part, low] += 1 - rest
            weights[part, min(low + 1, size - 1)] += rest
    return weights / max(count, 1)


@pytest.mark.slow
@given(st.floats(-40, 40, width=16), st.floats(0, 60, width=16), st.sampled_from([0, 2]), st.booleans())
@example(0.0, 60.0, 0, True)  # a sample lies on the border of the map
@settings(max_examples=60, deadline=None)
def test_weights_equal_the_published_loop(start, length, ratio, aligned):
    weights = axis_weights(
        jnp.asarray([start]), jnp.asarray([start + length]), 9, 4, sampling_ratio=ratio, aligned=aligned
    )
    np.testing.assert_allclose(weights[0], slowly(start, start + length, 9, 4, ratio, aligned), atol=2e-5)


@pytest.mark.slow
def test_strides_between_powers_of_two_are_exact():
    """A pyramid on patches of 14 pixels: a map of ones is one in every box, and a ramp is the place of the bin."""
    strides = (3.5, 7.0)
    sides = [int(56 / stride) for stride in strides]
    ramps = [
        jnp.broadcast_to((jnp.arange(side) + 0.5)[None, :, None] * stride, (side, side, 1))
        for side, stride in zip(sides, strides, strict=True)
    ]
    boxes = jnp.array([[14.0, 14, 42, 42]])
    pooled = pool(ramps, boxes, 4, strides=strides)
    np.testing.assert_allclose(pooled[0, 0, :, 0], [17.5, 24.5, 31.5, 38.5], rtol=1e-5)
