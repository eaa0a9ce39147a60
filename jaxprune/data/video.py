"""Reads selected frames of video files with PyAV, upright, in RGB."""

import bisect
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from jaxprune.data import decode
from jaxprune.errors import UserError, shortened

EXTENSIONS: tuple[str, ...] = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv", ".ogv")
EXTENSIONS += (".3gp", ".ts")
# The containers of these extensions, by FFmpeg's names. It supports many more; some list other files and URLs.
FORMATS = ("mov", "mp4", "avi", "matroska", "webm", "mpeg", "mpegts", "asf", "flv", "ogg", "3gp", "m4v", "mpegvideo")
MAX_FRAMES = 2**20  # of a video: ten hours at 30 frames per second
_TOO_LONG = f"more than {MAX_FRAMES:,} frames: cut it into pieces"

T = TypeVar("T")


class Broken(ValueError):
    """Raised for a file that is not a video, a damaged one, or one beyond the bounds on its size."""


def require_av() -> Any:
    """Returns PyAV.

    Raises:
      UserError: it is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise UserError('Reading videos needs PyAV, which is not installed: pip install "jaxprune[video]".') from error
    return av


def read_frames(
    path: str | os.PathLike,
    choose: Callable[[int], np.ndarray],
    prepare: Callable[[np.ndarray], T],
    *,
    upright: bool = True,
) -> dict[int, T]:
    """Returns {frame index: the output of `prepare`} for the chosen frames.

    Frames are numbered in presentation order. Only the stretches with chosen frames are decoded, each from the keyframe
    before it; files without complete timestamps are decoded completely.

    Args:
      path: the file.
      choose: maps the number of frames to the indices of the needed ones.
      prepare: maps a frame, uint8 (h, w, 3), to the data to keep.
      upright: whether frames are rotated according to the file's metadata.

    Raises:
      OSError: there is no such regular file.
      Broken: it is not a video, or a frame that is needed cannot be decoded.
      UserError: pyAV is not installed.
    """
    av = require_av()
    if not os.path.isfile(path):  # opening a pipe or a device would block
        raise OSError("not a regular file" if os.path.exists(path) else "no such file")
    try:
        with av.open(os.fspath(path), options={"format_whitelist": ",".join(FORMATS)}) as container:
            return _frames(container, choose, lambda frame: prepare(_rgb(frame, upright)))
    except (Broken, UserError):
        raise
    # Decoders raise many kinds of exceptions on damaged data.
    except Exception as error:
        raise Broken(getattr(error, "strerror", None) or f"{type(error).__name__}: {shortened(error)}") from error


def _frames(container: Any, choose: Callable[[int], np.ndarray], read: Callable[[Any], T]) -> dict[int, T]:
    stream = container.streams.best("video")  # the video, not its cover image
    if stream is None:
        raise Broken("it has no video stream")
    stream.thread_type = "AUTO"
    if stream.width * stream.height > decode.MAX_PIXELS:
        raise Broken(f"{stream.width:,}×{stream.height:,} pixels are more than the {decode.MAX_PIXELS:,} that are read")
    times, keys = _index(container, stream)
    if times:
        frames = _by_time(container, stream, times, keys, _numbers(choose, len(times)), read)
        if frames is not None:
            return frames
    return _one_by_one(container, stream, choose, read)


def _numbers(choose: Callable[[int], np.ndarray], count: int) -> list[int]:
    return np.unique(choose(count)).tolist()


def _index(container: Any, stream: Any) -> tuple[list[int], list[int]]:
    """The timestamps of all frames and of the keyframes, in order; empty if one is missing or duplicated."""
    times, keys = [], []
    for packet in container.demux(stream):
        if not packet.size or packet.is_discard:  # the end, or frames removed by an edit list
            continue
        if packet.pts is None:
            return [], []
        if len(times) == MAX_FRAMES:
            raise Broken(_TOO_LONG)
        times.append(packet.pts)
        if packet.is_keyframe:
            keys.append(packet.pts)
    return (sorted(times), sorted(keys)) if len(set(times)) == len(times) else ([], [])


def _by_time(
    container: Any, stream: Any, times: list[int], keys: list[int], numbers: list[int], read: Callable[[Any], T]
) -> dict[int, T] | None:
    """Reads the given frames by their timestamps; None if decoding does not yield a frame at each of them."""
    frames: dict[int, T] = {}
    decoded: Iterator[Any] = iter(())
    at: int | None = None  # timestamp of the last decoded frame
    for number in numbers:
        time = times[number]
        place = bisect.bisect_right(keys, time)
        key = keys[place - 1] if place else times[0]
        if at is None or key > at:
            container.seek(key, stream=stream)
            decoded = container.decode(stream)
        for frame in decoded:
            if frame.pts is None or frame.pts > time:
                return None
            at = frame.pts
            if at == time:
                frames[number] = read(frame)
                break
        else:
            return None
    return frames


def _one_by_one(
    container: Any, stream: Any, choose: Callable[[int], np.ndarray], read: Callable[[Any], T]
) -> dict[int, T]:
    """Reads the given frames by decoding the video from its start, once to count and once to read."""
    from_start = lambda: (container.seek(0), container.decode(stream))[1]
    count = sum(1 for _ in itertools.islice(from_start(), MAX_FRAMES + 1))
    if count > MAX_FRAMES:
        raise Broken(_TOO_LONG)
    if not count:
        raise Broken("it has no frames that can be decoded")
    numbers = set(_numbers(choose, count))
    decoded = itertools.islice(enumerate(from_start()), max(numbers) + 1)
    return {number: read(frame) for number, frame in decoded if number in numbers}


def _rgb(frame: Any, upright: bool) -> np.ndarray:
    picture = frame.to_ndarray(format="rgb24")
    turns = round(frame.rotation / 90) if upright else 0
    return np.rot90(picture, turns) if turns % 4 else picture
