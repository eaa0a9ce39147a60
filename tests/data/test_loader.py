"""Streams of batches: a pure function of their state, however they are read."""

import json

import numpy as np
import pytest
from streams import assert_equal, take

from jaxprune.data import crop_resize
from jaxprune.data.loader import eval_batches, train_batches
from jaxprune.data.memory import InMemory
from jaxprune.data.scenes import Scenes
from jaxprune.data.source_factory import create_source
from jaxprune.data.transform import Transform, WithSmallerImages
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing


def of(*size, **options):
    return Preprocessing((*size, *size)[:2], **options)


def test_contents_of_a_batch(held):
    batches = train_batches(held, batch_size=6, preprocessing=of(16), seed=0)
    batch = next(batches)
    assert set(batch) == {"image", "label", "index", "mask"}
    assert batch["image"].shape == (6, 16, 16, 3) and batch["image"].dtype == np.uint8
    assert batch["label"].shape == batch["index"].shape == (6,)
    assert batch["label"].dtype == batch["index"].dtype == np.int32
    assert batches.steps_per_epoch == 3
    np.testing.assert_array_equal(batch["label"], batch["index"] % 10)


def test_every_epoch_is_a_different_permutation(held):
    batches = train_batches(held, batch_size=5, preprocessing=of(32), seed=0, crop="none")
    epochs = [np.concatenate([b["index"] for b in take(batches, 4)]) for _ in range(3)]
    for order in epochs:
        np.testing.assert_array_equal(np.sort(order), np.arange(20))
    assert len({tuple(order) for order in epochs}) == 3
    other = train_batches(held, batch_size=5, preprocessing=of(32), seed=1, crop="none")
    assert not np.array_equal(next(other)["index"], epochs[0][:5])


def test_repeats_are_consecutive_and_cropped_differently(drawn):
    batches = train_batches(drawn, batch_size=6, preprocessing=of(8), seed=1, repeats=3)
    batch = next(batches)
    assert batch["index"].tolist() == [i for i in batch["index"][::3] for _ in range(3)]
    assert len({image.tobytes() for image in batch["image"][:3]}) == 3
    with pytest.raises(UserError, match="repeats=0"):
        train_batches(drawn, batch_size=6, preprocessing=of(8), seed=1, repeats=0)


def test_the_remainder_of_an_epoch_is_dropped(held):
    batches = train_batches(held, batch_size=8, preprocessing=of(32), seed=0, crop="none")
    for _ in range(3):
        assert len(set(np.concatenate([b["index"] for b in take(batches, 2)]))) == 16


@pytest.mark.parametrize("crop", ["none", "random_resized"])
def test_the_stream_depends_on_neither_memory_nor_threads(held, drawn, crop):
    assert isinstance(held, InMemory) and isinstance(drawn, Scenes)
    options = {"batch_size": 6, "preprocessing": of(32), "seed": 3, "crop": crop}
    expected = take(train_batches(held, **options), 7)
    assert_equal(expected, take(train_batches(drawn, **options, num_threads=1), 7))
    assert_equal(expected, take(train_batches(drawn, **options, num_threads=5), 7))


@pytest.mark.parametrize("which", ["held", "drawn"])
@pytest.mark.parametrize("stop", [0, 1, 3, 8])
def test_a_resumed_stream_continues_bit_for_bit(request, which, stop):
    source = request.getfixturevalue(which)
    options = {"batch_size": 6, "preprocessing": of(24), "seed": 5}
    whole = take(train_batches(source, **options), 12)
    first = train_batches(source, **options)
    assert_equal(whole[:stop], take(first, stop))
    state = json.loads(json.dumps(first.get_state()))
    second = train_batches(source, **options)
    take(second, 2)  # from any position
    second.set_state(state)
    assert_equal(whole[stop:], take(second, 12 - stop))
    assert second.get_state() == {**state, "step": 12}
    assert_equal(whole[stop:], take(train_batches(source, **options, start_step=stop), 12 - stop))


def test_the_state_of_a_different_stream_is_rejected(held):
    state = train_batches(held, batch_size=5, preprocessing=of(32), seed=0).get_state()
    with pytest.raises(UserError, match="seed was 0 and is 1; batch_size was 5 and is 4"):
        train_batches(held, batch_size=4, preprocessing=of(32), seed=1).set_state(state)


def test_a_state_of_repeats_is_no_state_without(held):
    batches = lambda repeats: train_batches(held, batch_size=4, preprocessing=of(32), seed=0, repeats=repeats)
    for before, now in ((2, 1), (1, 2)):
        with pytest.raises(UserError, match=f"repeats was {before} and is {now}"):
            batches(now).set_state(batches(before).get_state())


@pytest.mark.parametrize("count", [2, 3])
def test_processes_share_the_batches_of_a_single_one(held, count):
    options = {"batch_size": 6, "preprocessing": of(32), "seed": 0}
    parts = [train_batches(held, **options, process_index=i, process_count=count) for i in range(count)]
    for whole in take(train_batches(held, **options), 5):
        shares = [next(part) for part in parts]
        assert all(len(share["index"]) == 6 // count for share in shares)
        assert_equal([whole], [{k: np.concatenate([s[k] for s in shares]) for k in whole}])
    options.pop("seed")
    parts = [eval_batches(held, **options, process_index=i, process_count=count) for i in range(count)]
    seen = [batch["index"][batch["valid"]] for part in parts for batch in part]
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.arange(20))


@pytest.mark.parametrize("which", ["held", "drawn"])
def test_evaluation_reads_everything_once_and_pads_the_last_batch(request, which):
    source = request.getfixturevalue(which)
    batches = eval_batches(source, batch_size=8, preprocessing=of(32))
    assert len(batches) == 3
    for _ in range(2):
        seen = list(batches)
        assert [len(b["image"]) for b in seen] == [8, 8, 8]
        assert [int(b["valid"].sum()) for b in seen] == [8, 8, 4]
        np.testing.assert_array_equal(np.concatenate([b["index"] for b in seen])[:20], np.arange(20))
        np.testing.assert_array_equal(seen[1]["image"][3], source[11]["image"])
        np.testing.assert_array_equal(seen[1]["mask"][3], source[11]["mask"])
        assert seen[0]["mask"].shape == (8, 32, 32) and seen[0]["mask"].dtype == bool


def test_smaller_images_come_from_the_originals(drawn):
    """As if they were read at their size; what has the full size already is not cropped for smaller ones."""
    full, small = of(16, crop_pct=0.8), of(8, crop_pct=0.8)
    settings = {"batch_size": 4, "preprocessing": full}
    (batch, *_) = eval_batches(drawn, **settings, transform=WithSmallerImages(Transform(full), ((8, 8),)))
    (alone, *_) = eval_batches(drawn, batch_size=4, preprocessing=small)
    (plain, *_) = eval_batches(drawn, **settings)
    assert drawn[0]["image"].shape[:2] != full.img_size
    np.testing.assert_array_equal(batch["image_8x8"], alone["image"])
    np.testing.assert_array_equal(batch["image"], plain["image"])
    own = of(*drawn[0]["image"].shape[:2], crop_pct=0.8)
    transform = WithSmallerImages(Transform(own), ((8, 8),))
    (batch, *_) = eval_batches(drawn, batch_size=4, preprocessing=own, transform=transform)
    (alone, *_) = eval_batches(drawn, batch_size=4, preprocessing=of(8, crop="none"))
    np.testing.assert_array_equal(batch["image_8x8"], alone["image"])


def test_masks_are_transformed_like_their_images(drawn):
    for crop in ("center", "none"):
        batch = next(iter(eval_batches(drawn, batch_size=20, preprocessing=of(24, 20, crop=crop, crop_pct=0.8))))
        assert batch["image"].shape == (20, 24, 20, 3) and batch["mask"].shape == (20, 24, 20)
    same = crop_resize.center_crop(drawn[0]["mask"], (64, 64), 1.0, crop_resize.interpolation("bicubic"))
    np.testing.assert_array_equal(same, drawn[0]["mask"].repeat(2, 0).repeat(2, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 21}, r"has 20 images, which do not fill one batch of 21: lower batch_size"),
        ({"crop": "centre"}, r"Unknown crop 'centre'\. Did you mean 'center'"),
        ({"scale": (0.0, 1.0)}, r"A random crop needs 0 < scale"),
        ({"ratio": (2.0, 1.0)}, r"A random crop needs 0 < scale"),
        ({"process_count": 2, "batch_size": 5}, r"cannot be shared evenly"),
        ({"process_index": 1}, r"cannot be shared evenly"),
    ],
)
def test_invalid_arguments_are_rejected(held, change, message):
    with pytest.raises(UserError, match=message):
        train_batches(held, **{"batch_size": 4, "preprocessing": of(32), "seed": 0, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"img_size": (1, 2, 3)}, r"img_size must be \(height, width\).* not \(1, 2, 3\)"),
        ({"crop": "random_resized"}, r"Unknown crop 'random_resized'.*center, none"),
        ({"crop_pct": 1.2}, r"crop_pct=1.2 is outside \(0, 1\]"),
        ({"interpolation": "cubic"}, r"Unknown interpolation 'cubic'\. Did you mean 'bicubic'"),
        ({"std": (0.2, 0.0, 0.2)}, r"std=\(0.2, 0.0, 0.2\)"),
    ],
)
def test_a_record_refuses_what_no_image_can_be_prepared_by(change, message):
    with pytest.raises(UserError, match=message):
        Preprocessing(**{"img_size": (16, 16), **change})


@pytest.mark.parametrize("batches", [eval_batches, train_batches])
def test_a_source_that_turns_photographs_otherwise_is_refused(folder, batches):
    options = {"seed": 0} if batches is train_batches else {}
    for memory in (True, False):
        source = create_source("folder", path=folder, exif=False, in_memory=memory)
        assert next(iter(batches(source, batch_size=4, preprocessing=of(16, exif=False), **options)))
        with pytest.raises(UserError, match="exif=False, but the network's preprocessing has exif=True: open"):
            batches(source, batch_size=4, preprocessing=of(16), **options)


def test_a_bordered_crop_shifts_the_image_by_at_most_its_border(held):
    image = np.arange(2 * 9 * 3, dtype=np.uint8).reshape(1, 18, 3).repeat(6, 0)  # columns differ, of 3 × the width
    preprocessing, seen = of(6, interpolation="bilinear"), set()
    transform = Transform(preprocessing, random=True, border=2)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)), "reflect")
    places = {padded[:6, left : left + 6].tobytes(): left for left in range(17)}
    for seed in range(80):
        crop = transform(image, np.random.default_rng(seed))
        seen.add(places[crop.tobytes()])
    assert {0, 16} <= seen and len(seen) > 12
    batch = next(train_batches(held, batch_size=4, preprocessing=of(16), seed=0, crop="random_bordered"))
    assert batch["image"].shape == (4, 16, 16, 3)


class Mapped(Scenes):
    """Scenes of several sizes whose map says how bright each pixel is."""

    def __getitem__(self, index):
        example = super().__getitem__(index)
        image = example["image"][: 40 + index % 3]
        return {**example, "image": image, "mask": image[..., 0] // 64, "label_map": image[..., 0] // 64}


@pytest.mark.parametrize("crop", ["random_resized", "random_clipped", "random_bordered", "none", "center"])
def test_maps_keep_their_values_and_their_pixels(crop):
    source = Mapped(12, (48, 48))
    options = {"batch_size": 6, "preprocessing": of(24, interpolation="nearest"), "seed": 0, "crop": crop}
    batch = next(train_batches(source, **options))
    np.testing.assert_array_equal(batch["label_map"], batch["image"][..., 0] // 64)
    smooth = next(train_batches(source, **options | {"preprocessing": of(24)}))
    np.testing.assert_array_equal(smooth["label_map"], batch["label_map"])
    np.testing.assert_array_equal(smooth["mask"], batch["label_map"])
    for held_out in eval_batches(source, batch_size=6, preprocessing=of(24, crop=crop if crop == "none" else "center")):
        assert set(np.unique(held_out["label_map"])) <= {0, 1, 2, 3}
