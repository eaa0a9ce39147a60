"""The frame indices of a video's clips; nothing is read."""

import numpy as np
from jaxtyping import Int

from jaxprune.errors import UserError


def dense(length: int, num_frames: int, stride: int, num_clips: int = 1) -> Int[np.ndarray, "clips frames"]:
    """Returns the frames of clips that take every `stride`-th frame and start at even distances.

    The first clip starts with the video and the last one ends with it; a single clip lies in the middle. Videos that
    are too short are looped (VideoMAE's evaluation in mmaction2, Tong et al., 2022).

    >>> dense(12, num_frames=3, stride=2, num_clips=2)
    array([[ 0,  2,  4],
           [ 7,  9, 11]])
    >>> dense(3, num_frames=4, stride=2)
    array([[0, 2, 1, 0]])

    Args:
      length: number of frames of the video.
      num_frames: frames of a clip.
      stride: video frames between consecutive frames of a clip.
      num_clips: number of clips.
    """
    _check(length, num_frames, num_clips)
    latest = max(length - ((num_frames - 1) * stride + 1), 0)
    starts = np.round(np.arange(num_clips) * (latest / (num_clips - 1))) if num_clips > 1 else np.array([latest // 2])
    return (starts.astype(np.int64)[:, None] + stride * np.arange(num_frames)[None, :]) % length


def uniform(length: int, num_frames: int, num_clips: int = 1) -> Int[np.ndarray, "clips frames"]:
    """Returns the frames of clips that have one frame of each of `num_frames` equal parts of the video.

    A single clip takes the middle of each part (TSN; Wang et al., 2016); several take evenly spaced positions in it. A
    video with fewer frames than parts repeats frames.

    >>> uniform(8, num_frames=4)
    array([[1, 3, 5, 7]])
    >>> uniform(8, num_frames=4, num_clips=2)
    array([[0, 2, 4, 6],
           [1, 3, 5, 7]])
    >>> uniform(2, num_frames=4)
    array([[0, 0, 1, 1]])

    Args:
      length: number of frames of the video.
      num_frames: frames of a clip.
      num_clips: number of clips.
    """
    _check(length, num_frames, num_clips)
    # (part + position inside it) · length / parts, in integers: no rounding errors.
    parts, places = np.arange(num_frames)[None, :], np.arange(num_clips)[:, None]
    return (2 * num_clips * parts + 2 * places + 1) * length // (2 * num_clips * num_frames)


def sampled(length: int, num_frames: int, stride: int, num_clips: int = 1) -> Int[np.ndarray, "clips frames"]:
    """Returns the frames of clips: `dense`, or for a stride of 0 `uniform`."""
    return dense(length, num_frames, stride, num_clips) if stride else uniform(length, num_frames, num_clips)


def _check(length: int, num_frames: int, num_clips: int) -> None:
    if min(length, num_frames, num_clips) < 1:
        raise UserError(
            f"A video of {length} frames, clips of {num_frames} frames and {num_clips} clips: there must be at least "
            "one of each."
        )
