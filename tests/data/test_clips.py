"""Clips of folders of videos, and of scenes in motion, up to the batches that a network reads."""

import dataclasses
import pickle
import sys

import numpy as np
import pytest
from pictures import picture
from videos import numbered, numbers_of, turn, write_video

from jaxprune import data
from jaxprune.data import crop_resize
from jaxprune.data.clip_frames import dense, uniform
from jaxprune.data.pictures import open_pictures
from jaxprune.data.sample import Sample
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing

CLIP = Preprocessing((16, 16), crop_pct=1.0, num_frames=4, frame_stride=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes of five videos of different lengths."""
    root = tmp_path_factory.mktemp("videos")
    for label, name in enumerate(("run", "sit")):
        (root / name).mkdir()
        for number in range(5):
            write_video(root / name / f"{number}.mp4", numbered(8 + 5 * number + label))
    return root


def test_a_folder_of_videos_is_read_as_clips(folder):
    source = data.create_source("folder", path=str(folder), views=data.Views(CLIP))
    assert (source.class_names, len(source), source.num_frames) == (("run", "sit"), 10, 4)
    example = source[6]
    assert example["image"].shape == (4, 16, 16, 3) and example["image"].dtype == np.uint8
    assert (example["label"], example["index"]) == (1, 6)
    assert numbers_of(example["image"]).tolist() == dense(14, 4, 2)[0].tolist()
    assert data.describe(source) == f"{folder}: 10 videos, 2 classes"


def test_one_name_is_no_list_of_videos():
    with pytest.raises(UserError, match=r"videos='a.mp4' is not a list of files: give several, or one as \[file\]"):
        data.load_clips("a.mp4", CLIP)


@pytest.mark.parametrize("stride", [0, 2])
def test_views_are_clips_and_their_crops(stride, tmp_path):
    """Frames that are brighter to the right: a crop shows where it lies."""
    frames = numbered(20, (16, 64))
    frames[:] = np.linspace(0, 250, 64).astype(np.uint8)[None, None, :, None]
    path = write_video(tmp_path / "film.mp4", frames)
    views = data.Views(dataclasses.replace(CLIP, frame_stride=stride), num_clips=2, num_crops=3)
    shown = views(str(path), upright=True)
    assert shown.shape == views.shape == (6, 4, 16, 16, 3)
    brightness = shown.mean((1, 2, 3, 4)).reshape(2, 3)
    assert (np.diff(brightness, axis=1) > 60).all()  # from left to right
    np.testing.assert_allclose(brightness[0], brightness[1], atol=2)
    middle = data.Views(views.preprocessing)(str(path), upright=True)
    np.testing.assert_allclose(middle.mean(), brightness[:, 1].mean(), atol=2)
    taken = views.frames(20)
    expected = uniform(20, 4, 2) if not stride else dense(20, 4, 2, 2)
    np.testing.assert_array_equal(taken, expected)


def test_crops_go_along_the_longer_side():
    image = np.asarray(picture(0, (24, 48)))  # twice as high as it is wide
    top, middle, bottom = crop_resize.crops(image, (24, 24), 1.0, crop_resize.interpolation("bilinear"), 3)
    np.testing.assert_array_equal(top, image[:24])
    np.testing.assert_array_equal(middle, image[12:36])
    np.testing.assert_array_equal(bottom, image[24:])
    assert np.array_equal(middle, crop_resize.center_crop(image, (24, 24), 1.0, crop_resize.interpolation("bilinear")))


def test_a_video_is_turned_as_it_says(tmp_path):
    frames = np.zeros((6, 16, 32, 3), np.uint8)
    frames[:, :8] = 250  # bright above, and after a turn by 90° to the right
    turn(write_video(tmp_path / "film.mp4", frames), 90)
    shown = data.Views(CLIP)(str(tmp_path / "film.mp4"), upright=True)
    assert shown[:, :, 12:].mean() > 200 and shown[:, :, :4].mean() < 50


def test_batches_of_views_and_the_same_held_out_videos_for_a_seed(folder):
    options = {"path": str(folder), "held_out": 0.4, "views": data.Views(CLIP, 2, 1)}
    held, rest = (data.create_source("folder", split=split, **options) for split in ("test", "train"))
    again = data.create_source("folder", split="test", **options)
    files = [[source.path(index) for index in range(len(source))] for source in (held, rest, again)]
    assert files[0] == files[2] and not set(files[0]) & set(files[1]) and len(files[0]) == 4
    assert sorted(int(held[index]["label"]) for index in range(4)) == [0, 0, 1, 1]
    batches = list(data.eval_batches(Sample(held, 3), batch_size=2, preprocessing=CLIP))
    assert [batch["image"].shape for batch in batches] == [(2, 2, 4, 16, 16, 3)] * 2
    assert np.concatenate([batch["valid"] for batch in batches]).tolist() == [True, True, True, False]


def test_broken_videos_are_named_and_counted(tmp_path):
    for name in ("run", "sit"):
        (tmp_path / name).mkdir()
        write_video(tmp_path / name / "a.mp4", numbered(9))
        (tmp_path / name / "b.mp4").write_bytes(b"not a video")
    source = data.create_source("folder", path=str(tmp_path), views=data.Views(CLIP))
    batches = list(data.eval_batches(source, batch_size=4, preprocessing=CLIP))
    assert np.concatenate([batch["valid"] for batch in batches]).tolist() == [True, False, True, False]
    assert sorted(source.broken) == [str(tmp_path / "run" / "b.mp4"), str(tmp_path / "sit" / "b.mp4")]
    assert "2 broken" in data.describe(source)
    for name in ("run", "sit"):
        (tmp_path / name / "a.mp4").write_bytes(b"")
    with pytest.raises(UserError, match="None of the 4 videos"):
        next(iter(data.eval_batches(source, batch_size=4, preprocessing=CLIP)))


def test_images_and_clips_are_not_mixed_up(folder, tmp_path):
    (tmp_path / "run").mkdir()
    picture(0).save(tmp_path / "run" / "a.png")
    images_of = Preprocessing((16, 16))
    with pytest.raises(UserError, match="holds pictures and no videos, but the network reads clips"):
        data.create_source("folder", path=str(tmp_path), views=data.Views(CLIP))
    with pytest.raises(UserError, match="holds videos and no pictures, but the network reads images"):
        data.create_source("folder", path=str(folder))
    with pytest.raises(UserError, match="has images, but the network reads clips of 4 frames"):
        data.eval_batches(data.Scenes(8, 16), batch_size=4, preprocessing=CLIP)
    source = data.create_source("folder", path=str(folder), views=data.Views(CLIP))
    with pytest.raises(UserError, match="has clips of 4 frames, but the network reads images"):
        data.eval_batches(source, batch_size=4, preprocessing=images_of)
    with pytest.raises(UserError, match="training needs images"):
        data.train_batches(source, batch_size=4, preprocessing=CLIP, seed=0)
    with pytest.raises(UserError, match="network reads images"):
        data.Views(images_of)
    for path, record, read in ((folder, images_of, "images"), (tmp_path, CLIP, "clips")):
        with pytest.raises(UserError, match=f"the network reads {read}"):
            open_pictures(str(path), record)
    for path, record in ((folder / "run" / "0.mp4", images_of), (tmp_path / "run" / "a.png", CLIP)):
        with pytest.raises(UserError, match=r"holds (videos|pictures), but the network reads"):
            open_pictures(str(path), record)


def test_videos_of_ones_own(folder, tmp_path):
    found = open_pictures(str(folder), CLIP)
    assert len(found.names) == 10 and found.names[0] == "run/0.mp4"
    assert found.read(3).shape == (4, 16, 16, 3)
    single = open_pictures(str(folder / "sit" / "1.mp4"), CLIP, num_clips=2, num_crops=2)
    assert single.names == ["1.mp4"] and single.read(0).shape == (4, 4, 16, 16, 3)
    (tmp_path / "broken.mp4").write_bytes(b"")
    with pytest.raises(UserError, match=r"broken\.mp4' cannot be read"):
        open_pictures(str(tmp_path / "broken.mp4"), CLIP).read(0)


def test_clips_for_a_network(folder):
    record = dataclasses.replace(CLIP, mean=(0.5,) * 3, std=(0.25,) * 3)
    files = [folder / "run" / "4.mp4", folder / "sit" / "0.mp4"]
    clips = data.load_clips(files, record, num_clips=2)
    assert clips.shape == (4, 4, 16, 16, 3)
    pixels = data.Views(record, 2)(str(files[1]), upright=True)
    np.testing.assert_allclose(clips[2:], (pixels / 255 - 0.5) / 0.25, atol=1e-5)
    with pytest.raises(UserError, match="no videos"):
        data.load_clips([], record)
    with pytest.raises(UserError, match=r"data\.load_clips"):
        data.load_images(files, record)


def test_without_pyav_there_is_one_error_and_not_one_a_file(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match=r'pip install "jaxprune\[video\]"'):
        data.create_source("folder", path=str(folder), views=data.Views(CLIP))
    with pytest.raises(UserError, match=r'pip install "jaxprune\[video\]"'):
        open_pictures(str(folder), CLIP)


def test_scenes_in_motion():
    views = data.Views(dataclasses.replace(CLIP, frame_stride=8), num_clips=2)
    source = data.create_source("scenes", num_examples=12, views=views)
    assert (source.num_frames, source.num_classes, len(source)) == (4, 10, 12)
    shown = source[11]
    assert shown["image"].shape == (2, 4, 16, 16, 3) and shown["label"] == 1 and "mask" not in shown
    np.testing.assert_array_equal(shown["image"], pickle.loads(pickle.dumps(source))[11]["image"])
    for index in range(len(source)):
        clip = source[index]["image"][0].astype(int)
        assert np.abs(clip[0] - clip[-1]).mean() > 2  # it moves
    other = data.create_source("scenes", num_examples=12, views=views, split="test")
    assert not np.array_equal(other[11]["image"], shown["image"])


@pytest.mark.parametrize(
    "wrong",
    [{"num_clips": 0}, {"num_crops": 0}, {"num_crops": 3, "preprocessing": dataclasses.replace(CLIP, crop="none")}],
)
def test_views_that_are_none(wrong):
    with pytest.raises(UserError):
        data.Views(**{"preprocessing": CLIP, **wrong})


def test_the_record_of_a_clip_says_its_sides():
    assert CLIP.sides == (4, 16, 16) and Preprocessing((8, 16)).sides == (8, 16)
    assert Preprocessing.of_dict(CLIP.as_dict()) == CLIP
    with pytest.raises(UserError, match="num_frames=-1"):
        Preprocessing((8, 8), num_frames=-1)
