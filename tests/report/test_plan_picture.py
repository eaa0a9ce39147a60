"""What a plan did with patches, drawn from a network's output."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxprune import report
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing
from jaxprune.report.pictures.steps_of_plan import steps_of_plan

PIXELS = np.random.default_rng(0).integers(0, 256, (2, 24, 48, 3), np.uint8)
ASSIGN = np.where(np.arange(18) % 2, np.arange(18), -1)[None].repeat(2, 0)
AUX = SimpleNamespace(assign=(ASSIGN, ASSIGN))


def test_patches_are_placed_by_the_shape_of_the_image():
    expected = steps_of_plan(PIXELS, (ASSIGN, ASSIGN), [(3, 6), (3, 6)])
    assert np.array_equal(report.plan(PIXELS, AUX), expected)
    assert np.array_equal(report.plan(PIXELS, AUX, grids=((3, 6), (3, 6))), expected)
    assert not np.array_equal(report.plan(PIXELS, AUX, grids=((2, 9), (2, 9))), expected)


def test_of_many_steps_six_are_drawn_and_the_last_is_one_of_them():
    steps = tuple(np.where(np.arange(18) < 18 - step, np.arange(18), -1)[None].repeat(2, 0) for step in range(12))
    picture = report.plan(PIXELS, SimpleNamespace(assign=steps))
    drawn = report.plan(PIXELS, SimpleNamespace(assign=steps[1::2]))
    assert picture.shape[1] == drawn.shape[1] and picture.shape[0] > drawn.shape[0]  # with their numbers above
    height = drawn.shape[0] // 2
    assert np.array_equal(picture[-height:], drawn[-height:])


def test_normalised_images_have_their_true_colours():
    record = Preprocessing((24, 48))
    normalised = (PIXELS / 255 - np.array(record.mean)) / np.array(record.std)
    assert np.array_equal(report.plan(normalised, AUX, preprocessing=record), report.plan(PIXELS, AUX))
    assert np.array_equal(report.plan((PIXELS / 255).astype(np.float32), AUX), report.plan(PIXELS, AUX))
    stretched = report.plan(3 * (PIXELS - 7.0), AUX)
    assert stretched.shape == report.plan(PIXELS, AUX).shape


def test_what_does_not_belong_together_is_refused():
    with pytest.raises(UserError, match="no steps of a plan"):
        report.plan(PIXELS, SimpleNamespace(assign=()))
    with pytest.raises(UserError, match="aux is of 2"):
        report.plan(PIXELS[:1], AUX)
    with pytest.raises(UserError, match="step_grids"):
        report.plan(PIXELS, AUX, grids=((3, 5), (3, 5)))
    with pytest.raises(UserError, match="step_grids"):
        report.plan(PIXELS[:, None], AUX)
    with pytest.raises(UserError, match="have"):
        report.plan(PIXELS[0], AUX)
