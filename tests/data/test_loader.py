"""Batches: a stream that is a pure function of its state, whoever reads it and however it is read."""

import json

import numpy as np
import pytest
from pictures import break_files, fill, picture
from PIL import Image
from support import golden

from jaxprune.data import images, memory
from jaxprune.data.loader import create_source, describe, eval_batches, read_image, repeated, train_batches
from jaxprune.data.memory import InMemory
from jaxprune.data.sample import Sample
from jaxprune.data.scenes import Scenes
from jaxprune.errors import UserError


def take(batches, count):
    return [next(batches) for _ in range(count)]


def assert_equal(some, others):
    for a, b in zip(some, others, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.fixture(scope="module")
def held():
    """Twenty scenes, decoded."""
    return create_source("scenes", split="train", num_examples=20, image_size=32)


@pytest.fixture(scope="module")
def drawn():
    """The same scenes, drawn when they are needed."""
    return create_source("scenes", split="train", num_examples=20, image_size=32, in_memory=False)


def test_what_a_batch_is(held):
    batches = train_batches(held, batch_size=6, image_size=16, seed=0)
    batch = next(batches)
    assert set(batch) == {"image", "label", "index"}
    assert batch["image"].shape == (6, 16, 16, 3) and batch["image"].dtype == np.uint8
    assert batch["label"].shape == batch["index"].shape == (6,)
    assert batch["label"].dtype == batch["index"].dtype == np.int32
    assert batches.steps_per_epoch == 3
    np.testing.assert_array_equal(batch["label"], batch["index"] % 10)


def test_an_epoch_is_a_permutation_and_the_next_one_another(held):
    batches = train_batches(held, batch_size=5, image_size=32, seed=0, crop="none")
    epochs = [np.concatenate([b["index"] for b in take(batches, 4)]) for _ in range(3)]
    for order in epochs:
        np.testing.assert_array_equal(np.sort(order), np.arange(20))
    assert len({tuple(order) for order in epochs}) == 3
    other = train_batches(held, batch_size=5, image_size=32, seed=1, crop="none")
    assert not np.array_equal(next(other)["index"], epochs[0][:5])


@pytest.mark.parametrize("case", range(3))
def test_repeated_augmentation_takes_the_published_examples(case):
    file = golden("token_reduction/repeated_aug_sampler")
    length, replicas, rank, _, repeats = file[f"cfg_{case}"]
    wanted = file[f"idx_{case}"]
    positions = np.arange(rank, replicas * len(wanted), replicas)
    np.testing.assert_array_equal(repeated(file[f"perm_{case}"], positions, repeats), wanted)
    assert len(wanted) == length // 256 * 256 // replicas


def test_repeats_come_in_a_row_each_with_its_own_crop(drawn):
    batches = train_batches(drawn, batch_size=6, image_size=8, seed=1, repeats=3)
    batch = next(batches)
    assert batch["index"].tolist() == [i for i in batch["index"][::3] for _ in range(3)]
    assert len({image.tobytes() for image in batch["image"][:3]}) == 3
    with pytest.raises(UserError, match="repeats=0"):
        train_batches(drawn, batch_size=6, image_size=8, seed=1, repeats=0)


def test_what_does_not_fill_a_batch_is_left_out(held):
    batches = train_batches(held, batch_size=8, image_size=32, seed=0, crop="none")
    for _ in range(3):
        assert len(set(np.concatenate([b["index"] for b in take(batches, 2)]))) == 16


@pytest.mark.parametrize("crop", ["none", "random_resized"])
def test_held_or_drawn_whatever_the_threads_the_stream_is_the_same(held, drawn, crop):
    assert isinstance(held, InMemory) and isinstance(drawn, Scenes)
    options = {"batch_size": 6, "image_size": 32, "seed": 3, "crop": crop}
    expected = take(train_batches(held, **options), 7)
    assert_equal(expected, take(train_batches(drawn, **options, num_threads=1), 7))
    assert_equal(expected, take(train_batches(drawn, **options, num_threads=5), 7))


@pytest.mark.parametrize("which", ["held", "drawn"])
@pytest.mark.parametrize("stop", [0, 1, 3, 8])
def test_a_resumed_stream_goes_on_bit_for_bit(request, which, stop):
    source = request.getfixturevalue(which)
    options = {"batch_size": 6, "image_size": 24, "seed": 5}
    whole = take(train_batches(source, **options), 12)
    first = train_batches(source, **options)
    assert_equal(whole[:stop], take(first, stop))
    state = json.loads(json.dumps(first.get_state()))
    second = train_batches(source, **options)
    take(second, 2)  # wherever it stood
    second.set_state(state)
    assert_equal(whole[stop:], take(second, 12 - stop))
    assert second.get_state() == {**state, "step": 12}
    assert_equal(whole[stop:], take(train_batches(source, **options, start_step=stop), 12 - stop))


def test_a_state_of_another_stream_is_refused(held):
    state = train_batches(held, batch_size=5, image_size=32, seed=0).get_state()
    with pytest.raises(UserError, match="seed was 0 and is 1; batch_size was 5 and is 4"):
        train_batches(held, batch_size=4, image_size=32, seed=1).set_state(state)


@pytest.mark.parametrize("count", [2, 3])
def test_processes_share_what_one_would_see(held, count):
    options = {"batch_size": 6, "image_size": 32, "seed": 0}
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
def test_evaluation_sees_everything_once_and_pads_the_last_batch(request, which):
    source = request.getfixturevalue(which)
    batches = eval_batches(source, batch_size=8, image_size=32)
    assert len(batches) == 3
    for _ in range(2):
        seen = list(batches)
        assert [len(b["image"]) for b in seen] == [8, 8, 8]
        assert [int(b["valid"].sum()) for b in seen] == [8, 8, 4]
        np.testing.assert_array_equal(np.concatenate([b["index"] for b in seen])[:20], np.arange(20))
        np.testing.assert_array_equal(seen[1]["image"][3], source[11]["image"])
        np.testing.assert_array_equal(seen[1]["mask"][3], source[11]["mask"])
        assert seen[0]["mask"].shape == (8, 32, 32) and seen[0]["mask"].dtype == bool


def test_a_sample_is_spread_over_the_whole(held):
    part = Sample(held, 5)
    (batch,) = eval_batches(part, batch_size=8, image_size=32)
    assert batch["index"][:5].tolist() == [0, 1, 2, 3, 4] and batch["valid"].sum() == 5
    np.testing.assert_array_equal(batch["image"][:5], held.columns["image"][::4])
    assert len(Sample(held, 99)) == 20


def test_masks_follow_their_images(drawn):
    for crop in ("center", "none"):
        batch = next(iter(eval_batches(drawn, batch_size=20, image_size=(24, 20), crop=crop, crop_pct=0.8)))
        assert batch["image"].shape == (20, 24, 20, 3) and batch["mask"].shape == (20, 24, 20)
    same = images.center_crop(drawn[0]["mask"], (64, 64), 1.0, images.interpolation("bicubic"))
    np.testing.assert_array_equal(same, drawn[0]["mask"].repeat(2, 0).repeat(2, 1))


@pytest.mark.parametrize("in_memory", [None, False])
def test_a_broken_file_does_not_stop_a_run(folder, in_memory):
    break_files(folder / "ant" / "003.png", folder / "cow" / "000.png")
    source = create_source("folder", path=str(folder), in_memory=in_memory)
    assert isinstance(source, InMemory) == (in_memory is None)
    first, second = (take(train_batches(source, batch_size=4, image_size=24, seed=0), 6) for _ in range(2))
    assert_equal(first, second)
    assert sorted(np.concatenate([b["index"] for b in first[:3]])) == [0, 1, 2, 4, 4, 5, 6, 7, 9, 9, 10, 11]
    assert set(source.broken) == {str(folder / "ant" / "003.png"), str(folder / "cow" / "000.png")}
    assert describe(source).endswith("2 broken")
    seen = list(eval_batches(source, batch_size=8, image_size=24))
    valid = np.concatenate([b["valid"] for b in seen])
    assert np.flatnonzero(~valid).tolist() == [3, 8, 12, 13, 14, 15]
    replaced = np.concatenate([b["label"] for b in seen])
    assert replaced[3] == 1 and replaced[8] == 2  # the label belongs to the picture shown


def test_only_images_of_one_size_are_held(tmp_path, monkeypatch):
    root = fill(tmp_path / "x", ("a", "b"), 3)
    assert isinstance(create_source("folder", path=root), InMemory)
    monkeypatch.setattr(memory, "LIMIT", 6 * 24 * 24 * 3 - 1)
    assert not isinstance(create_source("folder", path=root), InMemory)
    assert isinstance(create_source("folder", path=root, in_memory=True), InMemory)
    monkeypatch.undo()
    picture(9, (30, 20)).save(root / "b" / "odd.png")
    source = create_source("folder", path=root)
    assert not isinstance(source, InMemory)
    assert next(iter(eval_batches(source, batch_size=7, image_size=16)))["image"].shape == (7, 16, 16, 3)
    with pytest.raises(UserError, match=r"needs images of one size.*24×24 and 20×30"):
        create_source("folder", path=root, in_memory=True)


def test_labels_may_be_missing(tmp_path):
    fill(tmp_path / "heap", ("x",), 4)
    source = create_source("folder", path=tmp_path / "heap" / "x", labels=False)
    batch = next(train_batches(source, batch_size=4, image_size=8, seed=0))
    np.testing.assert_array_equal(batch["label"], [-1, -1, -1, -1])


def test_random_boxes_are_as_large_and_as_long_as_asked():
    rng = np.random.default_rng(0)
    boxes = np.array([images.random_box(rng, 100, 140, (0.2, 0.5), (3 / 4, 4 / 3)) for _ in range(500)])
    top, left, h, w = boxes.T
    assert np.all((top >= 0) & (left >= 0) & (top + h <= 100) & (left + w <= 140))
    share, aspect = h * w / 14000, w / h
    assert 0.19 < share.min() < 0.23 and 0.47 < share.max() < 0.51
    assert 0.72 < aspect.min() < 0.78 and 1.28 < aspect.max() < 1.38
    assert abs(np.log(aspect).mean()) < 0.03


@pytest.mark.parametrize(
    ("shape", "box"), [((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10)), ((10, 12), (0, 0, 10, 12))]
)
def test_where_no_box_fits_the_middle_is_taken(shape, box):
    assert images.random_box(np.random.default_rng(0), *shape, (4.0, 5.0), (3 / 4, 4 / 3)) == box


def test_the_evaluation_view_is_the_middle_of_the_resized_image():
    image = np.asarray(picture(1, (80, 60)))
    whole = np.asarray(Image.fromarray(image).resize((42, 32), Image.Resampling.BICUBIC))  # 28 of 32, short side
    view = images.center_crop(image, (28, 28), 0.875, Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(view, whole[2:30, 7:35])
    same = images.center_crop(image, (60, 80), 0.875, Image.Resampling.BICUBIC)
    assert same is image
    assert images.center_crop(image, (40, 20), 1.0, Image.Resampling.BICUBIC).shape == (40, 20, 3)


def test_one_picture_by_itself(tmp_path):
    picture(1, (40, 20)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", 16).shape == (16, 16, 3)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", (20, 40)), np.asarray(picture(1, (40, 20))))
    (tmp_path / "b.png").write_text("x")
    for name in ("b.png", "c.png"):
        with pytest.raises(UserError, match=rf"{name}' cannot be read"):
            read_image(tmp_path / name, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 21}, r"has 20 images, which do not fill one batch of 21: lower batch_size"),
        ({"crop": "centre"}, r"Unknown crop 'centre'\. Did you mean 'center'"),
        ({"interpolation": "cubic"}, r"Unknown interpolation 'cubic'\. Did you mean 'bicubic'"),
        ({"scale": (0.0, 1.0)}, r"A random crop needs 0 < scale"),
        ({"ratio": (2.0, 1.0)}, r"A random crop needs 0 < scale"),
        ({"image_size": (1, 2, 3)}, r"image_size must be"),
        ({"process_count": 2, "batch_size": 5}, r"cannot be shared evenly"),
        ({"process_index": 1}, r"cannot be shared evenly"),
    ],
)
def test_bad_arguments_are_refused(held, change, message):
    with pytest.raises(UserError, match=message):
        train_batches(held, **{"batch_size": 4, "image_size": 32, "seed": 0, **change})


def test_bad_sources_are_refused():
    with pytest.raises(UserError, match=r"Unknown data source 'folders'\. Did you mean 'folder'"):
        create_source("folders")
    with pytest.raises(UserError, match=r"'scenes' has no option 'imagesize'\. Did you mean 'image_size'"):
        create_source("scenes", imagesize=3)
    with pytest.raises(UserError, match="needs the path"):
        create_source("folder")
    with pytest.raises(UserError, match="no random crops"):
        eval_batches(Scenes(4, 16), batch_size=2, image_size=16, crop="random_resized")


def test_sources_describe_themselves(held, drawn):
    assert describe(held) == "scenes/train: 20 images, 10 classes, 32×32, in memory (0 MiB)"
    assert describe(drawn) == "scenes/train: 20 images, 10 classes"


@pytest.mark.slow
def test_worker_processes_see_the_same_stream(folder):
    break_files(folder / "ant" / "003.png", folder / "cow" / "000.png")
    options = {"batch_size": 4, "image_size": 24, "seed": 0}
    alone, helped = (create_source("folder", path=str(folder), in_memory=False) for _ in range(2))
    expected = take(train_batches(alone, **options), 6)
    assert_equal(expected, take(train_batches(helped, **options, num_workers=2), 6))
    assert alone.broken == helped.broken and len(helped.broken) == 2
