"""The published training pipeline of segmentation, step by step, with its recorded draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import golden, golden_names, in_names

from jaxprune.data.augment_maps import augment_maps, mirrored, normalize_padded
from jaxprune.data.joint.crop import cropped, varied_box
from jaxprune.data.joint.photometric import distorted
from jaxprune.data.joint.resize import fitted_size, resized
from jaxprune.data.joint.segmentation import TestMaps as Test
from jaxprune.data.joint.segmentation import TrainMaps as Train
from jaxprune.data.joint.segmentation import pad
from jaxprune.errors import UserError
from jaxprune.nn.images import normalize
from jaxprune.ops.label_maps import IGNORED

FILES = golden_names("dense/seg_transforms*")
RATIO, FLIP = (0.5, 2.0), 0.5  # of the file's README


class Recorded:
    """A generator that returns recorded draws, each of its kind."""

    def __init__(self, file, step):
        self.draws = list(zip(file[f"{step}/draw_kinds"], file[f"{step}/draws"], strict=False))

    def take(self, *kinds):
        kind, value = self.draws.pop(0)
        assert kind in kinds
        return value

    def random(self):
        return self.take("random_sample", "rand")

    def uniform(self, low, high):
        value = self.take("uniform")
        assert low <= value <= high
        return value

    def integers(self, low, high):
        value = self.take("randint")
        assert low <= value < high and value == int(value)
        return int(value)


def rgb(file, key):
    return np.ascontiguousarray(file[key][..., ::-1])


def assert_within_one(pixels, expected):
    assert pixels.dtype == expected.dtype and np.abs(pixels.astype(int) - expected.astype(int)).max() <= 1


def ratio_of(file, out):
    return Recorded(file, f"{out}/resize").random() * (RATIO[1] - RATIO[0]) + RATIO[0]


def box_of(file, cases):
    """The box that images are fitted into, which the file does not name: the one that gives its sizes.

    As high as the crop and four times as long if that is it, as 2048 × 512 for crops of 512.
    """
    crop = min(file[f"out/case{cases[0]}/pad/label"].shape)
    others = ((times * side, side) for side in range(8, 257) for times in range(1, 9))

    def fits(box):
        pairs = [(file[f"in/case{case}/label"], file[f"out/case{case}/resize/label"]) for case in cases]
        ratios = [ratio_of(file, f"out/case{case}") for case in cases]
        sizes = [tuple(int(side * ratio) for side in box) for ratio in ratios]
        return all(fitted_size(old.shape, size) == new.shape for (old, new), size in zip(pairs, sizes, strict=True))

    return next(box for box in ((4 * crop, crop), *others) if fits(box))


@pytest.mark.parametrize("name", FILES)
def test_the_published_pipeline(name):
    file = golden(name)
    cases = in_names(file, r"in/case(\d+)/label")
    box = box_of(file, cases)
    for case in cases:
        out = f"out/case{case}"
        image, labels = rgb(file, f"in/case{case}/image_bgr"), file[f"in/case{case}/label"]
        ratio = ratio_of(file, out)
        size = file[f"{out}/pad/label"].shape
        shape = fitted_size(labels.shape, tuple(int(side * ratio) for side in box))
        assert_within_one(resized(image, shape), rgb(file, f"{out}/resize/image"))
        np.testing.assert_array_equal(resized(labels, shape), file[f"{out}/resize/label"])

        # Each further step starts from the file's own result, which keeps it apart from rounding before.
        image, labels = rgb(file, f"{out}/resize/image"), file[f"{out}/resize/label"]
        draws = Recorded(file, f"{out}/crop")
        place = varied_box(draws, labels, size)
        assert not draws.draws
        np.testing.assert_array_equal(cropped(image, place), rgb(file, f"{out}/crop/image"))
        np.testing.assert_array_equal(cropped(labels, place), file[f"{out}/crop/label"])

        flip = Recorded(file, f"{out}/flip").random() < FLIP
        padded = [pad(picture, size, 0) for picture in (rgb(file, f"{out}/crop/image"), file[f"{out}/crop/label"])]
        widths = jnp.asarray([file[f"{out}/crop/label"].shape[1]])
        for picture, key in zip(padded, ("image", "label"), strict=True):
            back = mirrored(jnp.asarray([flip]), jnp.asarray(picture[None]), widths)[0]
            expected = rgb(file, f"{out}/flip/image") if key == "image" else file[f"{out}/flip/label"]
            np.testing.assert_array_equal(back, pad(expected, size, 0))

        draws = Recorded(file, f"{out}/photometric")
        pixels = distorted(rgb(file, f"{out}/flip/image"), draws)
        np.testing.assert_array_equal(pixels, rgb(file, f"{out}/photometric/image"))
        assert not draws.draws

        image = rgb(file, f"{out}/photometric/image")
        extent = jnp.asarray([image.shape[:2]])
        images = normalize_padded(jnp.asarray(pad(image, size, 0))[None], extent)
        np.testing.assert_allclose(images[0], file[f"{out}/pad/image"], atol=3e-6)
        if f"{out}/normalize/image" in file:
            inside = tuple(map(slice, image.shape[:2]))
            np.testing.assert_allclose(images[0][inside], file[f"{out}/normalize/image"], atol=3e-6)
        labels = pad(file[f"{out}/photometric/label"], size, IGNORED)
        np.testing.assert_array_equal(labels, file[f"{out}/pad/label"])


@pytest.mark.parametrize("name", FILES)
def test_sizes_of_resized_images(name):
    file = golden(name)
    for (width, height), of_image in zip(file["in/sizes_wh"], file["out/sizes_wh"], strict=True):
        for ratio, expected in zip(file["in/ratios"], of_image, strict=True):
            box = tuple(int(side * float(ratio)) for side in (2048, 512))
            assert fitted_size((int(height), int(width)), box) == tuple(map(int, expected[::-1]))


def example(rows=40, columns=60, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.repeat(rng.integers(0, 4, (rows // 10, columns // 10)), 10, 0), 10, 1).astype(np.uint8)
    # Pixels say where they come from, so that image and map can be compared after any crop.
    image = np.stack([labels * 60, labels * 60, labels * 60], -1)
    return {"image": image, "label_map": labels, "label": np.int32(-1), "index": np.int32(0)}


def draws(stream):
    return np.random.default_rng(stream)


@pytest.mark.parametrize("size", [(32, 32), (64, 48)])
def test_training_moves_image_and_map_together(size):
    out = Train(size, box=(60, 40), ratio=(0.8, 1.5)).prepare(example(), draws, True)
    rows, columns = out["extent"]
    assert out["image"].shape == (*size, 3) and out["label_map"].shape == size
    inside = (slice(rows), slice(columns))
    same = np.abs(out["image"][inside][..., 0].astype(int) - out["label_map"][inside] * 60) <= 30
    assert same.mean() > 0.95
    assert (out["label_map"][rows:] == IGNORED).all() and (out["label_map"][:, columns:] == IGNORED).all()


def test_flips_on_the_device_move_image_and_map_together():
    size = (40, 64)
    out = [Train(size, box=(60, 40), distort=False).prepare(example(seed=seed), draws, True) for seed in range(8)]
    batch = {name: jnp.asarray(np.stack([row[name] for row in out])) for name in ("image", "label_map", "extent")}
    images, labels = jax.jit(augment_maps)(jax.random.key(1), *batch.values())
    pixels = normalize(batch["image"])
    flips = np.array([not np.array_equal(a, b) for a, b in zip(labels, batch["label_map"], strict=True)])
    assert 0 < flips.sum() < len(flips)
    assert (labels[:, :, 60:] == IGNORED).all() and not images[:, :, 60:].any()
    for flip, image, before, label, map_before in zip(flips, images, pixels, labels, batch["label_map"], strict=True):
        order = slice(None, None, -1) if flip else slice(None)
        np.testing.assert_allclose(image[:, :60], before[:, :60][:, order], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(label[:, :60], map_before[:, :60][:, order])


def test_a_canvas_holds_the_image_at_each_scale_and_the_map_as_it_is():
    test = Test(sizes=((60, 20), (90, 30)), canvases=((24, 40), (32, 48)), map_canvas=(48, 64))
    out = test.prepare(example(), draws, False)
    assert out["image"].shape == (24, 40, 3) and out["image_1"].shape == (32, 48, 3)
    assert out["extent"].tolist() == [20, 30] and out["extent_1"].tolist() == [30, 45]
    assert out["shape"].tolist() == [40, 60] and (out["label_map"][40:] == IGNORED).all()
    np.testing.assert_array_equal(out["label_map"][:40, :60], example()["label_map"])
    whole = Test(((0, 0),), ((16, 16),), (40, 60), keep_aspect=False).prepare(example(), draws, False)
    assert whole["extent"].tolist() == [16, 16]


def test_crops_need_a_range():
    with pytest.raises(UserError, match="is not a range"):
        Train((32, 32), ratio=(2.0, 0.5))
