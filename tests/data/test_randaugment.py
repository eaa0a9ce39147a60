"""RandAugment: its policies, and every operation at every strength, as published, whatever the version of Pillow."""

import platform
from pathlib import Path

import numpy as np
import pytest
from pictures import ODD_SIZES, odd_image
from PIL import Image
from support import golden

from jaxprune import main
from jaxprune.data.loader import train_batches
from jaxprune.data.randaugment import OPERATIONS, RandAugment
from jaxprune.data.source_factory import create_source
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing

CONFIGS = Path(__file__).parent.parent.parent / "configs"
FILL = (124, 116, 104)


def applied(name, image, strength, seed=0):
    return np.asarray(OPERATIONS[name](Image.fromarray(image), strength, np.random.default_rng(seed), FILL))


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
    assert RandAugment.parse("rand-m7-n3-p0.9") == RandAugment(3, 7.0, 0.0, 0.9)
    assert RandAugment.parse("rand") == RandAugment(2, 10.0, 0.0, 0.5)
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


def levels(image, table):
    return np.array(table, np.uint8)[image]


def stretched(image):
    """Every channel from its smallest and largest value to 0 and 255, if they differ."""
    channels = []
    for channel in np.moveaxis(image, -1, 0):
        low, high = int(channel.min()), int(channel.max())
        scale = 255.0 / (high - low) if high > low else 1.0
        offset = -low * scale if high > low else 0.0
        channels.append(levels(channel, [min(max(int(i * scale + offset), 0), 255) for i in range(256)]))
    return np.stack(channels, axis=-1)


def equalized(image):
    """Every channel by its cumulative histogram, unless it has one value."""
    channels = []
    for channel in np.moveaxis(image, -1, 0):
        counts = np.bincount(channel.ravel(), minlength=256)
        present = counts[counts > 0]
        step = (present.sum() - present[-1]) // 255 if len(present) > 1 else 0
        below = np.concatenate([[0], np.cumsum(counts)[:-1]])
        channels.append(levels(channel, np.minimum((step // 2 + below) // step, 255) if step else range(256)))
    return np.stack(channels, axis=-1)


LOOKED_UP = {
    "auto_contrast": lambda image, s: stretched(image),
    "equalize": lambda image, s: equalized(image),
    "invert": lambda image, s: 255 - image,
    "posterize": lambda image, s: image & (0, 128, 192, 224, 240)[4 - int(4 * s)],
    "solarize": lambda image, s: np.where(image < 256 - int(256 * s), image, 255 - image),
    "solarize_add": lambda image, s: np.where(image < 128, np.minimum(image.astype(int) + int(110 * s), 255), image),
}
STRENGTHS = np.linspace(0, 1, 41)


def check(image, seed, strengths):
    """Every operation keeps shape and type; those of a table of values give exactly that."""
    for name in OPERATIONS:
        for strength in strengths:
            result = applied(name, image, strength, seed)
            assert result.shape == image.shape and result.dtype == np.uint8, (name, strength, seed)
            if name in LOOKED_UP:
                expected = LOOKED_UP[name](image, strength)
                np.testing.assert_array_equal(result, expected, f"{name} at {strength} of image {seed}")


@pytest.mark.parametrize("seed", range(0, 6 * len(ODD_SIZES), 5))
def test_every_operation_at_every_strength(seed):
    check(odd_image(seed), seed, STRENGTHS)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2_000, 500))
def test_every_operation_on_two_thousand_images(first):
    for seed in range(first, first + 500):
        check(odd_image(seed), seed, np.append(STRENGTHS[seed % 4 :: 4], 1.0))


def test_the_largest_strength_of_posterize_is_black(image):
    assert not applied("posterize", image, 1.0).any() and applied("posterize", image, 0.99).any()


def test_operations_give_what_pillow_10_1_gave():
    """All versions from 10.1 to 13.0 agree in every byte; on other processors rounding may differ."""
    tolerance = 0 if platform.machine().lower() in ("x86_64", "amd64") else 1
    for key, expected in golden("augment/randaugment").items():
        name, number, strength = key.split("/")
        result = applied(name, odd_image(int(number)), float(strength), int(number))
        np.testing.assert_allclose(result.astype(int), expected, rtol=0, atol=tolerance, err_msg=key)


class OddSizes:
    """A source of images of all odd sizes."""

    name, class_names, num_classes, broken = "odd/train", ("image",), 1, {}

    def __len__(self):
        return 6 * len(ODD_SIZES)

    def __getitem__(self, index):
        return {"image": odd_image(index), "label": np.int32(0), "index": np.int32(index)}


@pytest.mark.campaign
@pytest.mark.slow
def test_fine_tuning_recipes_augment_for_two_thousand_steps():
    configs = {str(path.relative_to(CONFIGS)): main.load_config(str(path)) for path in CONFIGS.rglob("[!_]*.py")}
    recipes = {path: config.data for path, config in configs.items() if config.task == "finetune"}
    augmented = {path for path, data in recipes.items() if data.randaugment}
    assert {"mim/imagenet_finetune.py", "reduction/imagenet.py", "reduction/coco.py"} <= augmented
    names = ("interpolation", "crop", "crop_scale", "repeats", "randaugment", "cutout")
    for way in {tuple(data[name] for name in names) for data in recipes.values()}:
        options = dict(zip(names, way, strict=True))
        record = Preprocessing((32, 32), interpolation=options.pop("interpolation"))
        scale = options.pop("crop_scale")
        batches = train_batches(OddSizes(), batch_size=6, preprocessing=record, seed=0, scale=scale, **options)
        for _ in range(2_000):
            assert next(batches)["image"].shape == (6, 32, 32, 3)
