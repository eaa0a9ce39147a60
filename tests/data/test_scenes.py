"""Built-in scenes: the same at any resolution and in any order, with masks that say exactly where the object is."""

import concurrent.futures

import numpy as np
import pytest

from jaxprune.data.scenes import CLASS_NAMES, OBJECT_SCALE, Scenes
from jaxprune.errors import UserError


def averaged(pixels, factor):
    """Means of factor × factor pixels."""
    h, w = pixels.shape[0] // factor, pixels.shape[1] // factor
    return pixels.astype(np.float64).reshape(h, factor, w, factor, -1).mean((1, 3))


def test_what_an_example_is():
    example = Scenes(20, (48, 64))[13]
    assert example["image"].shape == (48, 64, 3) and example["image"].dtype == np.uint8
    assert example["mask"].shape == (48, 64) and example["mask"].dtype == bool
    assert example["label"] == 3 and example["label"].dtype == np.int32
    assert example["index"] == 13
    assert len(CLASS_NAMES) == Scenes.num_classes == 10
    with pytest.raises(IndexError):
        Scenes(20)[20]


def test_a_scene_depends_on_seed_split_and_number_only():
    scenes = Scenes(30, 32)
    others = Scenes(500, 32)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        backwards = list(pool.map(others.__getitem__, reversed(range(30))))[::-1]
    for i, example in enumerate(backwards):
        assert (scenes[i]["image"] == example["image"]).all() and (scenes[i]["mask"] == example["mask"]).all()
    for other in (Scenes(30, 32, seed=1), Scenes(30, 32, split="test")):
        assert not any((scenes[i]["image"] == other[i]["image"]).all() for i in range(30))
    assert len({scenes[i]["image"].tobytes() for i in range(30)}) == 30


@pytest.mark.parametrize("size", [32, (48, 64)])
def test_the_same_scene_at_any_resolution(size):
    sides = np.broadcast_to(size, (2,))
    small, large = Scenes(20, size), Scenes(20, tuple(int(s) for s in 8 * sides))
    for i in range(20):
        assert small[i]["label"] == large[i]["label"]
        difference = np.abs(averaged(large[i]["image"], 8) - small[i]["image"])
        assert difference.mean() < 2.0  # of 255
        # The object covers more than half of a pixel where the mask is true, and less where it is not.
        covered = averaged(large[i]["mask"], 8)[..., 0]
        assert ((covered > 0.5) == small[i]["mask"]).mean() > 0.99
        assert small[i]["mask"][covered > 0.8].all() and not small[i]["mask"][covered < 0.2].any()


def test_objects_lie_anywhere_and_wholly_inside():
    size, radii, places = 64, [], []
    scenes = Scenes(3000, size)
    for i in range(0, 3000, 10):  # discs
        mask = scenes[i]["mask"]
        radius = np.sqrt(mask.sum() / np.pi) / size
        centre = (np.argwhere(mask).mean(0) + 0.5) / size
        assert np.all(centre > radius - 0.02) and np.all(centre < 1 - radius + 0.02)
        radii.append(radius)
        places.append((centre - radius) / (1 - 2 * radius))
    assert OBJECT_SCALE[0] / 2 - 0.01 < min(radii) < max(radii) < OBJECT_SCALE[1] / 2 + 0.01
    for axis in np.array(places).T:
        counts, _ = np.histogram(axis, bins=5, range=(-0.02, 1.02))
        assert counts.sum() == 300 and counts.min() > 35


def test_colours_say_nothing_about_the_class():
    scenes = Scenes(1000, 32)
    colours = {c: [] for c in range(10)}
    for i in range(1000):
        colours[i % 10].append(scenes[i]["image"][scenes[i]["mask"]].mean(0))
    means = np.array([np.mean(v, 0) for v in colours.values()])
    spread = np.std(np.concatenate(list(colours.values())), 0)
    assert np.all(np.abs(means - means.mean(0)) < 4 * spread / np.sqrt(100))


def test_most_of_what_varies_inside_a_patch_can_be_foretold():
    """The mean visible patch, put in every masked place, already beats each masked patch's own mean colour."""
    rng = np.random.default_rng(0)
    own_mean, mean_visible = 0.0, 0.0
    scenes = Scenes(100, 64, split="test")
    for i in range(100):
        patches = (
            scenes[i]["image"].astype(np.float64).reshape(8, 8, 8, 8, 3).transpose(0, 2, 1, 3, 4).reshape(64, 64, 3)
        )
        order = rng.permutation(64)
        visible, masked = patches[order[:16]], patches[order[16:]]
        own_mean += masked.var(1).mean()
        mean_visible += np.square(masked - visible.mean(0)).mean()
    assert mean_visible < 0.8 * own_mean


def test_impossible_sizes_are_refused():
    with pytest.raises(UserError, match="at least 16 pixels"):
        Scenes(10, 8)
    with pytest.raises(UserError, match="num_examples=0"):
        Scenes(0)
