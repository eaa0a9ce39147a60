"""Frames of video files: the right ones, upright, and no others decoded; files that are none."""

import os
import sys

import av
import numpy as np
import pytest
from videos import numbered, numbers_of, turn, write_video

from jaxprune.data import video
from jaxprune.errors import UserError


def read(path, wanted, **options):
    """The frames `wanted`, in order."""
    found = video.read_frames(path, lambda length: np.array(wanted), lambda frame: frame, **options)
    return np.stack([found[number] for number in sorted(found)])


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """Thirty numbered frames, a keyframe every five, frames between that depend on later ones."""
    return write_video(tmp_path_factory.mktemp("film") / "film.mp4", numbered(30))


@pytest.mark.parametrize("wanted", [[0], [29], [4, 5, 6], [3, 17, 28], list(range(30))], ids=str)
def test_frames_are_those_of_their_numbers(wanted, film):
    assert numbers_of(read(film, wanted)).tolist() == wanted


def test_frames_are_the_same_whether_sought_or_decoded_from_the_start(film, monkeypatch):
    sought = read(film, [7, 22])
    monkeypatch.setattr(video, "_index", lambda *_: ([], []))
    np.testing.assert_array_equal(read(film, [7, 22]), sought)


def test_only_the_stretches_with_wanted_frames_are_decoded(film, monkeypatch):
    decoded = []
    rgb, by_time = video._rgb, video._by_time

    class Counted:
        def __init__(self, container):
            self.container = container

        def seek(self, *args, **options):
            return self.container.seek(*args, **options)

        def decode(self, stream):
            for frame in self.container.decode(stream):
                decoded.append(frame.pts)
                yield frame

    monkeypatch.setattr(video, "_by_time", lambda container, *rest: by_time(Counted(container), *rest))
    monkeypatch.setattr(video, "_rgb", rgb)
    read(film, [6, 27])
    assert len(decoded) <= 6  # of thirty: two from the second keyframe on, three from the last


@pytest.mark.parametrize("index", [True, False])
def test_a_video_that_is_too_long_is_refused_and_not_cut(index, film, monkeypatch):
    monkeypatch.setattr(video, "MAX_FRAMES", 29)
    if not index:
        monkeypatch.setattr(video, "_index", lambda *_: ([], []))
    with pytest.raises(video.Broken, match=r"more than [\d,]+ frames: cut it"):
        read(film, [0])
    monkeypatch.setattr(video, "MAX_FRAMES", 30)
    assert numbers_of(read(film, [29])).tolist() == [29]


def test_how_many_frames_there_are_is_known_first(film):
    lengths = []
    video.read_frames(film, lambda length: np.array([lengths.append(length) or 0]), lambda frame: None)
    assert lengths == [30]


@pytest.mark.parametrize("extension", [".avi", ".mkv", ".mov", ".ts"])
def test_other_containers_are_read_too(extension, tmp_path):
    codec = "mpeg2video" if extension == ".ts" else "mpeg4"
    path = write_video(tmp_path / f"film{extension}", numbered(12), b_frames=0, codec=codec)
    assert numbers_of(read(path, [2, 9])).tolist() == [2, 9]


@pytest.mark.parametrize(("degrees", "corner"), [(0, (0, 0)), (90, (0, -1)), (180, (-1, -1)), (270, (-1, 0))])
def test_frames_are_turned_as_the_file_says(degrees, corner, tmp_path):
    """A phone that was held upright stores a frame that lies on its side."""
    frames = np.zeros((4, 32, 64, 3), np.uint8)
    frames[:, :16, :32, 0] = 250  # red, top left
    path = turn(write_video(tmp_path / "film.mp4", frames), degrees)
    (shown,) = read(path, [1])
    assert shown.shape == ((64, 32, 3) if degrees % 180 else (32, 64, 3))
    red = shown[corner].astype(int)
    assert red[0] > 180 and red[1] < 80
    assert read(path, [1], upright=False).shape == (1, 32, 64, 3)


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "Invalid data"), (b"no video at all" * 99, "Invalid data"), (None, "no such file")]
)
def test_what_is_no_video_is_refused(content, reason, tmp_path):
    path = tmp_path / "film.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((video.Broken, OSError), match=reason):
        read(path, [0])


def test_a_file_with_sound_alone_is_no_video(tmp_path):
    path = tmp_path / "film.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        sound.sample_rate = 8000
        container.mux(stream.encode(sound))
        container.mux(stream.encode(None))
    with pytest.raises(video.Broken, match="no video stream"):
        read(path, [0])


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "film.mp4")
    with pytest.raises(OSError, match="not a regular file"):
        read(tmp_path / "film.mp4", [0])


def test_a_list_of_other_files_is_no_video(tmp_path, film):
    """FFmpeg would follow it, wherever it leads."""
    (tmp_path / "film.mp4").write_text(f"ffconcat version 1.0\nfile {film}\n")
    with pytest.raises(video.Broken):
        read(tmp_path / "film.mp4", [0])


def test_a_video_that_was_cut_off_shows_its_rest_or_is_broken(tmp_path):
    path = write_video(tmp_path / "film.ts", numbered(30), b_frames=0, codec="mpeg2video")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    lengths = []
    video.read_frames(path, lambda length: np.array([lengths.append(length) or 0]), lambda frame: None)
    assert 5 < lengths[0] < 30


def test_without_pyav_the_remedy_is_named(film, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match=r'pip install "jaxprune\[video\]"'):
        read(film, [0])
