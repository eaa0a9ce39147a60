"""The corruptions of ImageNet-C: what each does to an image, how much, and that it does the same again."""

import io

import numpy as np
import pytest
from PIL import Image

from jaxprune.data import loader
from jaxprune.data.corruptions import NAMES, SEVERITIES, Corruption
from jaxprune.data.corruptions.blur import along_path
from jaxprune.data.corruptions.weather import plasma
from jaxprune.data.scenes import Scenes
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing


def picture(side):
    return np.asarray(Scenes(split="test", num_examples=1, image_size=side, seed=0)[0]["image"])


def corrupted(name, severity, side, seed=0):
    return Corruption(name, severity)(picture(side), np.random.default_rng(seed))


@pytest.mark.parametrize("side", [32, 96])
@pytest.mark.parametrize("name", NAMES)
def test_a_corruption_is_repeatable_and_grows_with_its_severity(name, side):
    clean, change = picture(side).astype(float), []
    for severity in SEVERITIES:
        image = corrupted(name, severity, side)
        assert image.shape == (side, side, 3) and image.dtype == np.uint8
        np.testing.assert_array_equal(image, corrupted(name, severity, side))
        change.append(np.abs(image - clean).mean())
    assert change[0] > 0.1
    # The published elastic transforms differ in kind: severities 1 and 2 move far and smoothly.
    assert name == "elastic_transform" or change[-1] > change[0]


@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "impulse_noise", "snow", "fog", "glass_blur"])
def test_random_corruptions_depend_on_the_generator(name):
    assert (corrupted(name, 3, 96) != corrupted(name, 3, 96, seed=1)).any()


def test_contrast_keeps_the_mean_of_each_channel():
    image = Corruption("contrast", 5)(picture(96), np.random.default_rng(0))
    np.testing.assert_allclose(image.mean((0, 1)), picture(96).mean((0, 1)), atol=1)
    np.testing.assert_allclose(image.std((0, 1)), 0.05 * picture(96).std((0, 1)), atol=1)


def test_jpeg_is_that_of_pillow():
    file = io.BytesIO()
    Image.fromarray(picture(96)).save(file, "JPEG", quality=7)
    np.testing.assert_array_equal(corrupted("jpeg_compression", 5, 96), np.asarray(Image.open(file)))


def test_a_path_spreads_a_point_along_itself():
    point = np.zeros((33, 33, 1), np.float32)
    point[16, 8] = 1
    line = along_path(point, 3, 2.0, 0)
    assert line[16, 8:15, 0].min() > 0 and line.sum() == pytest.approx(1)
    assert (np.diff(line[16, 8:15, 0]) < 0).all()
    assert line.sum(1)[:, 0].nonzero()[0].tolist() == [16]


def test_plasma_fills_its_range():
    field = plasma((20, 30), 2.0, np.random.default_rng(0))
    assert field.shape == (20, 30) and 0 <= field.min() < field.max() <= 1


def test_held_out_batches_are_corrupted_the_same_every_time():
    scenes = Scenes(split="test", num_examples=3, image_size=32, seed=0)
    options = {"batch_size": 2, "preprocessing": Preprocessing((32, 32)), "num_threads": 1}
    clean = [batch["image"] for batch in loader.eval_batches(scenes, **options)]
    noisy = loader.eval_batches(scenes, **options, changes=(Corruption("shot_noise", 5),))
    first, again = ([batch["image"] for batch in noisy] for _ in range(2))
    for ours, same, before in zip(first, again, clean, strict=True):
        np.testing.assert_array_equal(ours, same)
        assert (ours != before).any()


@pytest.mark.parametrize(("name", "severity"), [("rain", 1), ("fog", 0), ("fog", 6)])
def test_an_unknown_corruption_or_severity_is_refused(name, severity):
    with pytest.raises(UserError, match=r"rain|severity"):
        Corruption(name, severity)
