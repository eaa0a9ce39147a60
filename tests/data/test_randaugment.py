import numpy as np
import pytest
from PIL import Image

from jaxprune.data.loader import train_batches
from jaxprune.data.randaugment import OPERATIONS, RandAugment
from jaxprune.data.source_factory import create_source
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(0).integers(0, 256, (24, 32, 3)).astype(np.uint8)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_keeps_the_shape_and_stronger_is_further_away(image, name):
    def apply(strength):
        picture = OPERATIONS[name](Image.fromarray(image), strength, np.random.default_rng(3), (1, 2, 3))
        return np.asarray(picture).astype(int)

    assert apply(0.9).shape == image.shape
    distance = [np.abs(apply(strength) - image).mean() for strength in (0.1, 0.9)]
    same = {"auto_contrast", "equalize", "invert"}
    assert distance[1] >= distance[0] if name in same else distance[1] > distance[0]


def test_a_policy_is_read_as_timm_writes_it():
    assert RandAugment.parse("rand-m9-mstd0.5-inc1") == RandAugment(2, 9.0, 0.5, 0.5)
    assert RandAugment.parse("rand-m7-n3-p0.9") == RandAugment(3, 7.0, 0.5, 0.9)
    for bad in ("augmix-m3", "rand-m9-inc0", "rand-w1", "rand-m"):
        with pytest.raises(UserError, match=f"'{bad}' is not a RandAugment policy"):
            RandAugment.parse(bad)


def test_half_of_the_operations_are_done(image):
    policy = RandAugment(num_layers=1, fill=(0, 0, 0))
    changed = [np.any(policy(image, np.random.default_rng(seed)) != image) for seed in range(300)]
    assert 0.35 < np.mean(changed) < 0.6


def test_the_stream_augments_and_stays_a_function_of_the_seed():
    source = create_source("scenes", num_examples=8, image_size=16)
    common = {"batch_size": 8, "preprocessing": Preprocessing((16, 16)), "seed": 1, "crop": "none"}
    plain = next(train_batches(source, **common))
    once, again = (next(train_batches(source, **common, randaugment="rand-m9-n4-p1")) for _ in range(2))
    np.testing.assert_array_equal(once["image"], again["image"])
    np.testing.assert_array_equal(once["label"], plain["label"])
    assert np.any(once["image"] != plain["image"])
