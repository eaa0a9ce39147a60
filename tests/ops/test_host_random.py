"""NumPy's generators of seeds that JAX takes too."""

import numpy as np
import pytest

from jaxprune.data.scenes import Scenes
from jaxprune.ops.host_random import host_generator
from jaxprune.recover.healing import set_aside


@pytest.mark.parametrize("seeds", [(0,), (7,), (2**40, 3), (0, 0)])
def test_seeds_that_numpy_takes_give_its_numbers(seeds):
    expected = np.random.default_rng(seeds if len(seeds) > 1 else seeds[0])
    np.testing.assert_array_equal(host_generator(*seeds).random(4), expected.random(4))


def test_negative_seeds_have_numbers_of_their_own():
    draws = {host_generator(*seeds).random() for seeds in ((-1,), (-2,), (0,), (1,), (-1, 1), (-1, 2), (np.int64(-3),))}
    assert len(draws) == 7


def test_a_seed_that_is_no_whole_number_is_refused():
    with pytest.raises(TypeError):
        host_generator(0.5)


def test_images_are_set_aside_by_a_negative_seed():
    scenes = Scenes(split="train", num_examples=20, image_size=16)
    first, second = (set_aside(scenes, seed) for seed in (-1, 0))
    assert first[1].names != second[1].names
