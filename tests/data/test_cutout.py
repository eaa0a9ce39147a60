"""Cutout: one rectangle in one colour, before RandAugment."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from jaxprune import data
from jaxprune.data.cutout import Cutout
from jaxprune.data.randaugment import RandAugment
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing


class Draws:
    """A generator that draws fixed numbers."""

    def __init__(self, *values):
        self.values = list(values)

    def integers(self, *_):
        return self.values.pop(0)


@pytest.mark.parametrize("centre", [(0, 0), (7, 11), (15, 15), (3, 14)])
def test_cutout_paints_what_pillow_draws(centre):
    image = np.zeros((16, 16, 3), np.uint8)
    painted = Cutout(0.5)(image, Draws(*centre, np.array([9, 8, 7])))
    expected = Image.fromarray(image.copy())
    ends = [np.clip(at + step, 0, 16) for step in (-4, 4) for at in centre[::-1]]
    ImageDraw.Draw(expected).rectangle([int(end) for end in ends], fill=(9, 8, 7))
    np.testing.assert_array_equal(painted, np.asarray(expected))
    assert not image.any()


def test_training_batches_are_cut_out_before_randaugment():
    scenes = data.create_source("scenes", split="train", num_examples=4, image_size=(16, 16), seed=0)
    options = {"batch_size": 4, "preprocessing": Preprocessing((16, 16)), "seed": 0, "crop": "none"}
    batches = data.train_batches(scenes, **options, cutout=0.5, randaugment="rand-m9-mstd0.5-inc1")
    first, second = batches._reader._transform.augment
    assert first == Cutout(0.5) and isinstance(second, RandAugment)
    plain = next(data.train_batches(scenes, **options))
    cut = next(data.train_batches(scenes, **options, cutout=0.5))
    changed = (plain["image"] != cut["image"]).any(-1).mean((1, 2))
    assert (changed > 0).all() and (changed <= 81 / 256).all()


def test_a_side_beyond_the_image_is_refused():
    with pytest.raises(UserError, match=r"cutout=1.5 .* use one in \(0, 1\]"):
        Cutout(1.5)
