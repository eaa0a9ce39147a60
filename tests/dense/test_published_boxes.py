"""Proposals and detections of given boxes, against the published numbers; strides of maps with rounded sides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import golden, in_names, quick_compile

from jaxprune.dense.parts.roi_heads import detections
from jaxprune.dense.parts.rpn import suppressed
from jaxprune.dense.parts.simple_pyramid import strides

FILE = golden("dense/det_nms")
IMAGES = in_names(FILE, r"out/proposals/image(\d+)/boxes")
LEVELS = in_names(FILE, r"in/proposals/level(\d+)/boxes")


def close(array, expected):
    np.testing.assert_allclose(array, expected, atol=1e-4, rtol=1e-5)


def ordered(level, image):
    """The boxes and logits of a level, by falling logit."""
    boxes, logits = (FILE[f"in/proposals/level{level}/{key}"][int(image)] for key in ("boxes", "logits"))
    order = np.argsort(-logits, kind="stable")
    return boxes[order], logits[order]


def kept(level, image, expected):
    """Which of a level's boxes, by falling logit, are among the expected ones."""
    boxes, logits = ordered(level, image)
    clipped = np.clip(boxes, 0, np.tile(FILE["in/proposals/image_sizes_hw"][int(image)][::-1], 2))
    rows, wanted = (np.concatenate([part, values[:, None]], 1) for part, values in ((clipped, logits), expected))
    return np.flatnonzero((np.abs(rows[:, None] - wanted[None]) < 1e-4).all(-1).any(1))


def test_proposals_match():
    expected = {i: [FILE[f"out/proposals/image{i}/{key}"] for key in ("boxes", "logits")] for i in IMAGES}
    # As many boxes of a level as it takes to have the worst kept one; how many go on in all, the longest result says.
    ranks = [kept(level, i, expected[i]).max(initial=0) for level in LEVELS for i in IMAGES]
    before, after = 1 + int(max(ranks)), max(len(boxes) for boxes, _ in expected.values())
    program = jax.jit(suppressed, static_argnums=4, compiler_options=quick_compile())
    for i, (boxes, logits) in expected.items():
        parts = [[part[:before] for part in ordered(level, i)] for level in LEVELS]
        levels = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part[0]) for part in parts])
        size = jnp.asarray(FILE["in/proposals/image_sizes_hw"][int(i)], jnp.float32)
        found = program(*(jnp.concatenate([part[k] for part in parts]) for k in (0, 1)), levels, size, after)
        taken = np.asarray(found[2])
        close(found[0][taken], boxes)
        close(found[1][taken], logits)


@pytest.mark.parametrize("num", in_names(FILE, r"out/detections_(\d+)/boxes"))
def test_detections_match(num):
    boxes, probabilities = (jnp.asarray(FILE[f"in/detections/{key}"]) for key in ("boxes", "probabilities"))
    size, valid = jnp.asarray(FILE["in/detections/image_size_hw"], jnp.float32), jnp.ones(len(boxes), bool)
    options = {"score": 0.05, "overlap": 0.5, "num": int(num)}
    call = jax.jit(lambda *parts: detections(*parts, **options), compiler_options=quick_compile())
    places, scores, classes, rows, taken = (np.asarray(part) for part in call(boxes, probabilities, valid, size))
    prefix = f"out/detections_{num}"
    close(places[taken], FILE[f"{prefix}/boxes"])
    close(scores[taken], FILE[f"{prefix}/scores"])
    np.testing.assert_array_equal(classes[taken], FILE[f"{prefix}/classes"])
    np.testing.assert_array_equal(rows[taken], FILE[f"{prefix}/row"])


def test_strides_double_where_sides_are_rounded():
    """Patches of 16 at 112 pixels: the half of 7 rows is 3, and every second of these are 2; the strides stay."""
    sides = (28, 14, 7, 3, 2)
    assert strides([jnp.zeros((1, side, side, 1)) for side in sides], 112) == [4, 8, 16, 32, 64]
