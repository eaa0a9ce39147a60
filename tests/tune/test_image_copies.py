"""Copies of images count once, on one side of the split."""

import io
import types

import numpy as np
import pytest
from flax import nnx
from PIL import Image

from jaxprune import models
from jaxprune.errors import UserError
from jaxprune.measures.training_images import TrainingImages
from jaxprune.tune import Bound, Settings, tune, tuning
from jaxprune.tune.healing_images import HealingImages
from jaxprune.tune.image_copies import UNREADABLE, first_of_copies
from jaxprune.tune.store import Store

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 4}


def pictures(count, size=48, seed=0):
    """Different smooth pictures, as photographs are."""
    cells = np.random.default_rng(seed).integers(0, 256, (count, 6, 6, 3)).astype(np.uint8)
    resize = lambda image: Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC)
    return np.stack([np.asarray(resize(image)) for image in cells])


def shown(images):
    return lambda numbers: ({"image": images[part]} for part in np.array_split(numbers, 7))


def saved_again(image, quality):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


def test_an_image_that_cannot_be_read_takes_no_other_with_it():
    """In its place a batch holds the next one."""
    images, valid = pictures(6), np.arange(6) != 2
    images[2] = images[3]
    show = lambda numbers: [{"image": images[numbers], "valid": valid[numbers]}]
    np.testing.assert_array_equal(first_of_copies(show, 6), [0, 1, UNREADABLE, 3, 4, 5])
    features = np.eye(5, 8, dtype=np.float32)  # none of the one that cannot be read
    np.testing.assert_array_equal(first_of_copies(show, 6, features), [0, 1, UNREADABLE, 3, 4, 5])
    healed = types.SimpleNamespace(training_images=TrainingImages.of(images[[4]]))
    healing_images = HealingImages.of(healed, {}, show, 6, first_of_copies(show, 6), Store())
    np.testing.assert_array_equal(healing_images.images, np.arange(6) == 4)
    with pytest.raises(UserError, match="None of the 6 images can be read"):
        first_of_copies(lambda numbers: [{"image": images, "valid": np.zeros(6, bool)}], 6)


@pytest.mark.parametrize("copies", [2, 4, 16])
def test_exact_and_near_copies_are_found(copies):
    images = pictures(40)
    near = [np.stack([saved_again(image, 80 + number % 15) for image in images]) for number in range(1, copies)]
    exact = [images] * (copies - 1)
    for more in (exact, near):
        every = np.concatenate([images, *more])
        order = np.random.default_rng(1).permutation(len(every))
        first = first_of_copies(shown(every[order]), len(every))
        assert len(np.unique(first)) == 40 and (first <= np.arange(len(every))).all()
        np.testing.assert_array_equal((order % 40)[first], order % 40)


def changed(images):
    """Near copies that no two pixels show: mirrored, brighter, of less contrast, cut at the border."""
    images = images.astype(np.float32)
    yield images[:, :, ::-1]
    yield np.clip(images + 40, 0, 255)
    yield (images - 128) * 0.6 + 128
    yield np.clip(images[:, :, ::-1] * 0.8 + 10, 0, 255)


def seen(images, noise=0.1):
    """The features of a network that does not mind these changes: of the pattern, with some noise."""
    patterns = images.astype(np.float32).reshape(len(images), 8, -1, 8, images.shape[2] // 8, 3).mean((2, 4))
    patterns = patterns + patterns[:, :, ::-1]
    patterns = (patterns - patterns.mean((1, 2, 3), keepdims=True)).reshape(len(images), -1)
    patterns /= np.linalg.norm(patterns, axis=1, keepdims=True)
    return patterns + np.random.default_rng(0).normal(size=patterns.shape) * noise / np.sqrt(patterns.shape[1])


def test_near_copies_by_features_are_found():
    images = pictures(40)
    every = np.concatenate([images, *(part.astype(np.uint8) for part in changed(images))])
    by_pixels, by_features = (first_of_copies(shown(every), 200, features) for features in (None, seen(every)))
    assert len(np.unique(by_pixels)) > 150
    np.testing.assert_array_equal(by_features, np.tile(np.arange(40), 5))


def test_features_alone_make_no_copies():
    """Those of an untrained network are nearly equal for all images; and images may have the same pattern by chance."""
    images = pictures(100)
    alike = np.ones((100, 16), np.float32) + np.random.default_rng(0).normal(size=(100, 1)) * np.ones(16)
    np.testing.assert_array_equal(first_of_copies(shown(images), 100, alike), np.arange(100))
    brighter = np.clip(images[:50].astype(int) + 40, 0, 255).astype(np.uint8)
    both = np.concatenate([images[:50], brighter])
    different = np.random.default_rng(1).normal(size=(100, 64))
    np.testing.assert_array_equal(first_of_copies(shown(both), 100, different), np.arange(100))


@pytest.mark.slow
def test_a_tuning_leaves_out_brighter_images_by_the_features_of_its_network(monkeypatch):
    model = models.create("vit", **SIZES, rngs=nnx.Rngs(0))
    images = pictures(40, 16)
    every = np.concatenate([images, np.clip(images.astype(int) + 6, 0, 255).astype(np.uint8)])
    settings = Settings(methods=("topk",), places=((1,),), kept=(0.75, 0.5), rounds=1, limit=2, most_tested=1)
    assert len(np.unique(first_of_copies(shown(every), 80))) == 80  # by pixels they are not copies
    tuned = tune(model, every, bound=Bound("agreement", 0.3), settings=settings)
    assert sum(tuned.images) < 70 and "or the network's features, near copies of others" in tuned.why


def test_different_images_are_no_copies():
    for images in (pictures(200), np.random.default_rng(0).integers(0, 256, (200, 16, 16, 3)).astype(np.uint8)):
        np.testing.assert_array_equal(first_of_copies(shown(images), 200), np.arange(200))
    clips = np.stack([pictures(4, seed=seed) for seed in range(6)])
    np.testing.assert_array_equal(first_of_copies(shown(np.concatenate([clips, clips])), 12), [*range(6), *range(6)])


def test_pictures_that_differ_in_one_place_are_no_copies():
    (picture,) = pictures(1)
    other = picture.copy()
    other[12:18, 12:18] = 255 - other[12:18, 12:18]
    assert np.abs(other.mean() - picture.mean()) < 3
    assert first_of_copies(shown(np.stack([picture, other])), 2).tolist() == [0, 1]


@pytest.mark.slow
def test_a_tuning_counts_copies_once_and_says_so(monkeypatch):
    model = models.create("vit", **SIZES, rngs=nnx.Rngs(0))
    images = pictures(24, 16)
    settings = Settings(methods=("topk",), places=((1,),), kept=(0.75, 0.5), rounds=1, limit=2, most_tested=1)
    seen = []
    losses = tuning.Losses
    monkeypatch.setattr(tuning, "Losses", lambda *a: seen.append(a[2]) or losses(*a))
    once = tune(model, images, bound=Bound("agreement", 0.3), settings=settings)
    assert "copies" not in once.why and sorted(np.concatenate(seen[0])) == list(range(24))
    tuned = tune(model, np.concatenate([images] * 4), bound=Bound("agreement", 0.3), settings=settings)
    assert tuned.images == once.images == (12, 12)
    assert "Of 96 images 72 are copies or, by pixels or the network's features, near copies of others" in tuned.why
    for left, right in zip(*seen, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.slow
def test_too_few_images_without_their_copies_are_refused():
    model = models.create("vit", **SIZES, rngs=nnx.Rngs(0))
    every = np.concatenate([pictures(30, 16)] * 4)
    with pytest.raises(tuning.UserError, match=r"30 images are too few \(90 of 120 are copies of others\)"):
        tune(model, every, bound=Bound("agreement", 0.95), settings=Settings(methods=("topk",), places=((1,),)))
