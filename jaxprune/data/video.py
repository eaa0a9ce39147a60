"""Reads frames of video files by PyAV: those that are asked for, upright, RGB."""

import bisect
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from jaxprune.data import images
from jaxprune.errors import UserError

EXTENSIONS: tuple[str, ...] = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv", ".ogv")
EXTENSIONS += (".3gp", ".ts")
# The containers of these extensions by FFmpeg's names. It knows many more; some are lists of other files and addresses.
FORMATS = ("mov", "mp4", "avi", "matroska", "webm", "mpeg", "mpegts", "asf", "flv", "ogg", "3gp", "m4v", "mpegvideo")
MAX_FRAMES = 2**20  # of a video: ten hours at thirty a second
_TOO_LONG = f"more than the {MAX_FRAMES:,} frames that are read: cut it into pieces"

T = TypeVar("T")


class Broken(ValueError):
    """Raised for a file that is no video, a damaged one, or one beyond the bounds on its size."""


def require_av() -> Any:
    """Returns PyAV.

    Raises:
      UserError: It is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise UserError('Videos are read by PyAV, which is not installed: pip install "jaxprune[video]".') from error
    return av


def read_frames(
    path: str | os.PathLike,
    choose: Callable[[int], np.ndarray],
    prepare: Callable[[np.ndarray], T],
    *,
    upright: bool = True,
) -> dict[int, T]:
    """Returns {number of a frame: what `prepare` makes of it} of the frames that are chosen.

    Frames are numbered in the order in which they are shown. Only the stretches that hold chosen ones are decoded, each
    from the keyframe before it; where a file has no complete list of its frames' times, all of it is.

    Args:
      path: The file.
      choose: How many frames there are to the numbers of those that are needed.
      prepare: A frame, uint8 (h, w, 3), to what is kept of it.
      upright: Whether frames are turned as the file's metadata say.

    Raises:
      OSError: There is no such regular file.
      Broken: It is no video, or a frame that is needed cannot be decoded.
      UserError: PyAV is not installed.
    """
    av = require_av()
    if not os.path.isfile(path):  # a pipe or a device would be waited for
        raise OSError("not a regular file" if os.path.exists(path) else "no such file")
    try:
        with av.open(os.fspath(path), options={"format_whitelist": ",".join(FORMATS)}) as container:
            return _frames(container, choose, lambda frame: prepare(_rgb(frame, upright)))
    except (Broken, UserError):
        raise
    # Decoders raise all sorts of things at all sorts of damage.
    except Exception as error:
        raise Broken(getattr(error, "strerror", None) or f"{type(error).__name__}: {error}") from error


def _frames(container: Any, choose: Callable[[int], np.ndarray], read: Callable[[Any], T]) -> dict[int, T]:
    stream = container.streams.best("video")  # the film, not its cover
    if stream is None:
        raise Broken("it has no video stream")
    stream.thread_type = "AUTO"
    if stream.width * stream.height > images.MAX_PIXELS:
        raise Broken(f"{stream.width:,}×{stream.height:,} pixels are more than the {images.MAX_PIXELS:,} that are read")
    times, keys = _index(container, stream)
    if times:
        found = _by_time(container, stream, times, keys, _numbers(choose, len(times)), read)
        if found is not None:
            return found
    return _one_by_one(container, stream, choose, read)


def _numbers(choose: Callable[[int], np.ndarray], count: int) -> list[int]:
    return np.unique(choose(count)).tolist()


def _index(container: Any, stream: Any) -> tuple[list[int], list[int]]:
    """The times of all frames and of the keyframes, in order; none where a frame lacks one or shares another's."""
    times, keys = [], []
    for packet in container.demux(stream):
        if not packet.size or packet.is_discard:  # the end, or what an edit list cuts off
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
    container: Any, stream: Any, times: list[int], keys: list[int], wanted: list[int], read: Callable[[Any], T]
) -> dict[int, T] | None:
    """The wanted frames, by their times; None where decoding does not show a frame at each of them."""
    found: dict[int, T] = {}
    decoded: Iterator[Any] = iter(())
    at: int | None = None  # the time of the last frame that was decoded
    for number in wanted:
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
                found[number] = read(frame)
                break
        else:
            return None
    return found


def _one_by_one(
    container: Any, stream: Any, choose: Callable[[int], np.ndarray], read: Callable[[Any], T]
) -> dict[int, T]:
    """The wanted frames of a video that is decoded from its start: once to count them, once to read."""
    decode = lambda: (container.seek(0), container.decode(stream))[1]
    count = sum(1 for _ in itertools.islice(decode(), MAX_FRAMES + 1))
    if count > MAX_FRAMES:
        raise Broken(_TOO_LONG)
    if not count:
        raise Broken("it has no frames that can be decoded")
    wanted = set(_numbers(choose, count))
    shown = itertools.islice(enumerate(decode()), max(wanted) + 1)
    return {number: read(frame) for number, frame in shown if number in wanted}


def _rgb(frame: Any, upright: bool) -> np.ndarray:
    picture = frame.to_ndarray(format="rgb24")
    turns = round(frame.rotation / 90) if upright else 0
    return np.rot90(picture, turns) if turns % 4 else picture
