"""Non-maximum suppression against the published numbers, and against a plain program."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support import golden, in_names, quick_compile

from jaxprune.ops.nms import nms


def kept(*args, **options):
    ids, taken = nms(*args, **options)
    return np.asarray(ids)[np.asarray(taken)]


def test_groups_and_thresholds_match():
    file = golden("dense/det_nms")
    boxes, scores, groups = (jnp.asarray(file[f"in/{key}"]) for key in ("boxes", "scores", "groups"))
    thresholds = in_names(file, r"out/batched_nms_([\d.]+)/keep")
    assert thresholds
    for text in thresholds:
        expected = file[f"out/batched_nms_{text}/keep"]
        options = {"threshold": float(text), "groups": groups.astype(jnp.int32)}
        np.testing.assert_array_equal(kept(boxes, scores, num=len(boxes), **options), expected)
        np.testing.assert_array_equal(kept(boxes, scores, num=5, **options), expected[:5])


def test_an_overlap_equal_to_the_threshold_stays():
    file = golden("dense/det_nms")
    (text,) = in_names(file, r"out/edge/keep_at_([\d.]+)")
    boxes, scores = jnp.asarray(file["in/edge/boxes"]), jnp.asarray(file["in/edge/scores"])
    np.testing.assert_array_equal(
        kept(boxes, scores, threshold=float(text), num=len(boxes)), file[f"out/edge/keep_at_{text}"]
    )


def plain(boxes, scores, valid, groups, threshold, num):
    """The definition, one box after the other, in float32."""
    taken = []
    for i in np.argsort(-scores, kind="stable"):
        if not valid[i] or len(taken) == num:
            continue
        for j in taken:
            low, high = np.maximum(boxes[i, :2], boxes[j, :2]), np.minimum(boxes[i, 2:], boxes[j, 2:])
            common = np.prod(np.maximum(high - low, 0))
            union = sum(np.prod(boxes[k, 2:] - boxes[k, :2]) for k in (i, j)) - common
            if groups[i] == groups[j] and common > np.float32(threshold) * union:
                break
        else:
            taken.append(i)
    return taken


program = jax.jit(
    jax.vmap(lambda boxes, scores, valid, groups: nms(boxes, scores, threshold=0.5, num=6, valid=valid, groups=groups)),
    compiler_options=quick_compile(),
)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_equals_the_definition_with_ties_groups_and_padding(seed):
    random = np.random.default_rng(seed)
    start = random.integers(0, 6, (2, 12, 2))
    boxes = np.concatenate([start, start + random.integers(0, 6, (2, 12, 2))], axis=-1).astype(np.float32)
    scores = random.integers(0, 4, (2, 12)).astype(np.float32)
    valid, groups = random.random((2, 12)) < 0.8, random.integers(0, 2, (2, 12)).astype(np.int32)
    ids, taken = program(boxes, scores, valid, groups)
    for i in range(2):
        expected = plain(boxes[i], scores[i], valid[i], groups[i], 0.5, 6)
        assert np.asarray(ids)[i][np.asarray(taken)[i]].tolist() == expected
