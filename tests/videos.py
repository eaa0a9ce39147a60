"""Tiny videos, written for the tests, whose frames can be told apart."""

import math
import struct
from fractions import Fraction

import av
import numpy as np

STEP = 6  # of brightness from one frame to the next


def numbered(length, size=(32, 48)):
    """Frames (length, h, w, 3), grey; `numbers_of` reads the number of each from its brightness."""
    levels = (20 + STEP * np.arange(length)).astype(np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (length, *size, 3)).copy()


def numbers_of(frames):
    """The numbers of frames that `numbered` made, (…,) from (…, h, w, 3)."""
    return np.round((np.asarray(frames, float).mean((-3, -2, -1)) - 20) / STEP).astype(int)


def write_video(path, frames, *, key_every=5, b_frames=2, codec="mpeg4"):
    """Encodes frames (t, h, w, 3), 10 a second."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        stream.bit_rate, stream.codec_context.gop_size, stream.codec_context.max_b_frames = 10**6, key_every, b_frames
        stream.codec_context.time_base = Fraction(1, 10)
        for number, values in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(values, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def turn(path, degrees):
    """Notes in an MP4 file that its frames are to be turned clockwise when they are shown."""
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 44  # behind version, flags, times, track, duration, layer and volume
    cos, sin = (round(f(math.radians(degrees))) for f in (math.cos, math.sin))
    fixed = [value << 16 for value in (cos, sin, 0, -sin, cos, 0, 0, 0)] + [1 << 30]
    data[matrix : matrix + 36] = struct.pack(">9i", *fixed)
    path.write_bytes(data)
    return path
