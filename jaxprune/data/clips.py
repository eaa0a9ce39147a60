"""Clips of videos for a network: the crops of frames, and the views of a video."""

import dataclasses
import os
from collections.abc import Iterable

import jax
import numpy as np
from jaxtyping import Float

from jaxprune.data import crop_resize, video
from jaxprune.data.broken_examples import Unreadable
from jaxprune.data.clip_frames import sampled
from jaxprune.errors import UserError, quoted
from jaxprune.preprocessing import Preprocessing


def one_view(images: np.ndarray) -> np.ndarray:
    """Returns the clip that represents a video in pictures, (frames, h, w, 3): the middle one of several views.

    An image, or a clip that is the only view, is returned unchanged.
    """
    return images[len(images) // 2] if images.ndim == 5 else images


@dataclasses.dataclass(frozen=True)
class Views:
    """Reads views of videos: clips of each video, and crops of each clip.

    >>> Views(Preprocessing((224, 224), num_frames=16), num_clips=5, num_crops=3).shape
    (15, 16, 224, 224, 3)

    Attributes:
      preprocessing: preprocessing of a network that reads clips.
      num_clips: number of clips per video, evenly spaced; see `clip_frames.sampled`.
      num_crops: number of crops per clip, evenly spaced along the longer side of its frames; 1 is the centre crop.

    Raises:
      UserError: an attribute is out of range, or the network reads images.
    """

    preprocessing: Preprocessing
    num_clips: int = 1
    num_crops: int = 1

    kind, files, extensions = "video", "videos", video.EXTENSIONS

    def __post_init__(self):
        if not self.preprocessing.num_frames:
            raise UserError("Views are of videos, but the network reads images: give a network that reads clips.")
        if min(self.num_clips, self.num_crops) < 1:
            raise UserError(f"num_clips={self.num_clips} and num_crops={self.num_crops} must be 1 or more.")
        if self.num_crops > 1 and self.preprocessing.crop == "none":
            raise UserError(
                f'num_crops={self.num_crops} of whole frames would all be the same: use 1, or crop="center" in the '
                "preprocessing."
            )

    @property
    def num_frames(self) -> int:
        """Frames of a clip."""
        return self.preprocessing.num_frames

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example: of a clip, or of all views if there are several."""
        count, clip = self.num_clips * self.num_crops, (*self.preprocessing.sides, 3)
        return clip if count == 1 else (count, *clip)

    def frames(self, length: int) -> np.ndarray:
        """Returns the frame indices of each clip of a video with `length` frames, (clips, frames)."""
        record = self.preprocessing
        return sampled(length, record.num_frames, record.frame_stride, self.num_clips)

    def cropped(self, frame: np.ndarray) -> list[np.ndarray]:
        """Returns the crops of a frame, uint8 (h, w, 3), each of the network's size."""
        record = self.preprocessing
        if self.num_crops == 1:
            return [crop_resize.prepare(frame, record)]
        filter_ = crop_resize.interpolation(record.interpolation)
        return crop_resize.crops(frame, record.img_size, record.crop_pct, filter_, self.num_crops)

    def __call__(self, path: str, *, upright: bool) -> np.ndarray:
        """Reads a video file: a clip, uint8 (frames, h, w, 3), or several views, crops of a clip next to each other.

        Args:
          path: the file.
          upright: whether frames are rotated according to the file's metadata.

        Raises:
          Unreadable: the file is broken or gone.
          UserError: pyAV is not installed.
        """
        frames = np.zeros((0, 0), int)

        def choose(length: int) -> np.ndarray:
            nonlocal frames
            frames = self.frames(length)
            return frames

        try:
            decoded = video.read_frames(path, choose, self.cropped, upright=upright)
        except (OSError, video.Broken) as error:
            raise Unreadable(path, str(error), "video") from error
        if missing := set(frames.ravel().tolist()) - decoded.keys():
            raise Unreadable(path, f"frame {min(missing)} cannot be decoded", "video")
        return self.of(decoded, frames)

    def of(self, frames: dict[int, list[np.ndarray]], numbers: np.ndarray) -> np.ndarray:
        """Assembles views from the crops of frames.

        Args:
          frames: {frame index: its crops from `cropped`}.
          numbers: the frame indices from `frames`.
        """
        views = [[frames[n][crop] for n in clip] for clip in numbers.tolist() for crop in range(self.num_crops)]
        return np.array(views).reshape(self.shape)


def read_views(path: str | os.PathLike, views: Views) -> np.ndarray:
    """Returns a clip of a video file, or several views of it.

    Raises:
      UserError: it cannot be read.
    """
    try:
        return views(os.path.expanduser(path), upright=views.preprocessing.exif)
    except Unreadable as error:
        raise UserError(f"Video {str(path)!r} cannot be read: {error.reason}.") from error


def load_clips(
    videos: Iterable[str | os.PathLike], preprocessing: Preprocessing, *, num_clips: int = 1, num_crops: int = 1
) -> Float[jax.Array, "b t h w c"]:
    """Returns clips of video files as network input: preprocessed as in evaluation, and normalised, float32.

    Several views of a video are consecutive.

    Args:
      videos: the files.
      preprocessing: the network's `model.preprocessing`.
      num_clips, num_crops: views of a video; see `Views`.

    Raises:
      UserError: there are no videos, or one cannot be read, or the network reads images.
    """
    if not isinstance(videos, Iterable) or isinstance(videos, str | bytes | os.PathLike):
        raise UserError(f"videos={quoted(videos)} is not a list of files: give several, or one as [file].")
    views = Views(preprocessing, num_clips, num_crops)
    rows = [read_views(path, views) for path in videos]
    if not rows:
        raise UserError("There are no videos to load: give files.")
    clips = np.stack(rows).reshape(-1, *preprocessing.sides, 3)
    return crop_resize.normalized(clips, preprocessing.mean, preprocessing.std)
