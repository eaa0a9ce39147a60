"""Samples are spread evenly over their source, and are not every-so-many-th example of it."""

import numpy as np

from jaxprune.data.loader import eval_batches
from jaxprune.data.sample import Sample
from jaxprune.data.scenes import Scenes
from jaxprune.preprocessing import Preprocessing


def test_a_sample_has_one_example_of_each_stretch(held):
    part = Sample(held, 5)
    (batch,) = eval_batches(part, batch_size=8, preprocessing=Preprocessing((32, 32)))
    assert batch["index"][:5].tolist() == [0, 1, 2, 3, 4] and batch["valid"].sum() == 5
    for stretch, image in enumerate(batch["image"][:5]):
        same = [np.array_equal(image, other) for other in held.columns["image"][4 * stretch : 4 * stretch + 4]]
        assert same.count(True) == 1
    np.testing.assert_array_equal(Sample(held, 5)[3]["image"], part[3]["image"])


def test_all_examples_are_in_their_order(held):
    assert len(Sample(held, 99)) == 20
    for index in range(20):
        np.testing.assert_array_equal(Sample(held, 99)[index]["image"], held.columns["image"][index])


def test_classes_that_take_turns_are_all_there():
    scenes = Scenes(split="test", num_examples=200, image_size=16, seed=0)
    part = Sample(scenes, 100)
    labels = [int(part[index]["label"]) for index in range(100)]
    assert set(labels) == set(range(10))
    assert np.bincount(labels).min() >= 4
