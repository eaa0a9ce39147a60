"""Images of several sizes in one program: the numbers of each image alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import quick_compile

from jaxprune.data.joint.segmentation import pad
from jaxprune.dense.parts import canvas, inference
from jaxprune.errors import UserError
from jaxprune.evaluate.segmentation.at_test import SLIDE, TestTime
from jaxprune.ops.resize import resize

SIZES = ((40, 52), (32, 32), (52, 33))
WINDOW, STRIDE = (32, 32), (20, 20)


def images(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(*size, 3)).astype(np.float32) for size in SIZES]


def stacked(pictures, side=(52, 52)):
    return jnp.asarray(np.stack([pad(picture, side, 0) for picture in pictures]))


def segment(pixels):
    """Logits that depend on where in the window a pixel is, as those of a network do."""
    rows, columns = (jnp.linspace(0, 1, side) for side in pixels.shape[1:3])
    place = (rows[:, None] * columns[None])[None]
    return jnp.stack([pixels.sum(-1), pixels[..., 0] * place, pixels[..., 1] - place], -1)


EXTENTS = jnp.asarray(SIZES)


@pytest.mark.parametrize("shape", [(17, 60), (52, 20)])
def test_resizing_on_a_canvas_is_resizing(shape):
    shapes = jnp.asarray([shape] * len(SIZES))
    result = jax.jit(lambda x: canvas.resized(x, EXTENTS, shapes, (60, 64)))(stacked(images()))
    for row, picture in zip(result, images(), strict=True):
        expected = resize(jnp.asarray(picture[None]), shape, "bilinear")[0]
        np.testing.assert_allclose(row[: shape[0], : shape[1]], expected, atol=1e-5)
        assert not row[shape[0] :].any() and not row[:, shape[1] :].any()


def test_windows_on_a_canvas_are_those_of_each_image():
    program = jax.jit(
        lambda x: canvas.sliding(segment, x, EXTENTS, window=WINDOW, stride=STRIDE), compiler_options=quick_compile()
    )
    result = program(stacked(images()))
    for row, picture in zip(result, images(), strict=True):
        expected = inference.sliding(segment, jnp.asarray(picture[None]), window=WINDOW, stride=STRIDE)[0]
        height, width = picture.shape[:2]
        np.testing.assert_allclose(row[:height, :width], expected, atol=1e-5)


def test_windows_that_leave_pixels_out_are_refused():
    pixels = jnp.asarray(images()[0][None])
    with pytest.raises(UserError, match=r"stride=\(20, 33\) of windows of 32x32 pixels would leave pixels out"):
        inference.sliding(segment, pixels, window=WINDOW, stride=(20, 33))
    with pytest.raises(UserError, match=r"stride=\(0, 20\)"):
        TestTime(WINDOW, SLIDE, stride=(0, 20))


@pytest.mark.slow
def test_scales_and_mirrors_are_averaged():
    shapes = ((30, 40), (32, 32), (60, 50))
    scales = [{"images": stacked(images(seed)), "extents": EXTENTS} for seed in range(2)]
    options = {"window": WINDOW, "stride": STRIDE, "flip": True}
    shares = canvas.probabilities(segment, scales, jnp.asarray(shapes), (60, 50), **options)
    for i, shape in enumerate(shapes):
        several = []
        for seed in range(2):
            picture = jnp.asarray(images(seed)[i][None])
            slide = lambda pixels: inference.sliding(segment, pixels, window=WINDOW, stride=STRIDE)
            several.append(inference.probabilities(slide(picture), shape))
            mirror = inference.probabilities(slide(picture[:, :, ::-1]), shape)
            several.append(mirror[:, :, ::-1])
        np.testing.assert_allclose(shares[i, : shape[0], : shape[1]], sum(several)[0] / 4, atol=1e-5)
