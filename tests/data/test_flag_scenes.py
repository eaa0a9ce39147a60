"""Scenes with small flags: the same at any resolution, anywhere in the image, and their class is on the flag alone."""

import numpy as np
import pytest

from jaxprune import data
from jaxprune.data.flag_scenes import CLASS_NAMES, FlagScenes
from jaxprune.errors import UserError


def averaged(pixels, factor):
    h, w = pixels.shape[0] // factor, pixels.shape[1] // factor
    return pixels.astype(np.float64).reshape(h, factor, w, factor, -1).mean((1, 3))


def test_the_same_scene_at_any_resolution():
    small, large = FlagScenes(20, 64), FlagScenes(20, 256)
    for i in range(20):
        assert small[i]["label"] == large[i]["label"] == i % len(CLASS_NAMES)
        assert np.abs(averaged(large[i]["image"], 4) - small[i]["image"]).mean() < 2.0  # of 255
        covered = averaged(large[i]["mask"], 4)[..., 0]
        assert ((covered > 0.5) == small[i]["mask"]).mean() > 0.99


def test_a_scene_depends_on_seed_split_and_number_only():
    scenes, others = FlagScenes(10, 32), FlagScenes(50, 32)
    assert all((scenes[i]["image"] == others[i]["image"]).all() for i in range(10))
    for other in (FlagScenes(10, 32, seed=1), FlagScenes(10, 32, split="test")):
        assert not any((scenes[i]["image"] == other[i]["image"]).all() for i in range(10))


def test_flags_are_small_and_lie_anywhere():
    places, shares = [], []
    for i in range(200):
        mask = FlagScenes(200, 64)[i]["mask"]
        places.append(np.argwhere(mask).mean(0) / 64)
        shares.append(mask.mean())
    assert 0.02 < min(shares) < max(shares) < 0.06
    assert np.all(np.ptp(places, 0) > 0.6) and np.allclose(np.mean(places, 0), 0.5, atol=0.06)


def test_the_stripes_have_the_colours_of_the_class_in_their_order():
    example = FlagScenes(1, 256)[0]  # blue|white|red, upright
    rows, columns = np.nonzero(example["mask"])
    thirds = np.quantile(columns, (0.15, 0.5, 0.85))
    row = int(np.median(rows))
    left, middle, right = (example["image"][row, int(column)].astype(int) for column in thirds)
    assert left.argmax() == 2 and right.argmax() == 0 and np.ptp(middle) < 40


def test_a_source_of_flags():
    source = data.create_source("scenes", num_examples=3, image_size=32, objects="flags")
    assert source.class_names == CLASS_NAMES and (source[2]["image"] == FlagScenes(3, 32)[2]["image"]).all()
    with pytest.raises(UserError, match="objects of built-in scenes"):
        data.create_source("scenes", objects="flag")
    with pytest.raises(UserError, match="set objects='shapes'"):
        data.create_source("scenes", objects="flags", label_maps=True)
