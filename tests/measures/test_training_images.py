"""The images that taught a network are known again: the same pixels, saved again, mirrored; no others."""

import numpy as np
import pytest
from PIL import Image

from jaxprune.measures.training_images import TrainingImages


def pictures(count, seed=0):
    cells = np.random.default_rng(seed).integers(0, 256, (count, 6, 6, 3)).astype(np.uint8)
    resize = lambda image: Image.fromarray(image).resize((48, 48), Image.Resampling.BICUBIC)
    return np.stack([np.asarray(resize(image)) for image in cells])


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x[:, :, ::-1], lambda x: (x // 4) * 4 + 2])
def test_copies_are_included(change):
    images = pictures(30)
    record = TrainingImages.of(images[:10])
    assert len(record) == 10
    np.testing.assert_array_equal(record.include(change(images)), np.arange(30) < 10)


def test_the_record_survives_a_file_and_joins_another():
    first, second = TrainingImages.of(pictures(3)), TrainingImages.of(pictures(2, seed=1))
    both = first.joined(second)
    assert TrainingImages.from_arrays(both.arrays()) == both and len(both) == 5
    assert both.include(pictures(2, seed=1)).all() and first.joined(None) == first
    other = TrainingImages.of(np.zeros((1, 4, 4, 3), np.uint8))
    assert first.joined(other) == first and not other.include(pictures(2)).any()


def test_a_damaged_record_is_none():
    arrays = TrainingImages.of(pictures(3)).arrays()
    assert TrainingImages.from_arrays({}) is None
    for name in arrays:
        for damaged in (arrays[name][:1], arrays[name].astype(np.float32), arrays[name].reshape(-1)):
            assert TrainingImages.from_arrays({**arrays, name: damaged}) is None
