"""Networks for a folder of your own pictures and a few minutes: sizes and steps by the pictures and the time."""

import math
import statistics
from pathlib import Path

from PIL import Image

from jaxprune.data.folder import image_files
from jaxprune.errors import unknown

# Sizes that train from random weights within minutes; steps of 32 photographs a minute on two CPU cores, of
# pre-training and of a classifier's training.
SIZES = {
    "tiny": ({"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 4, "num_heads": 3}, 500, 250),
    "small": ({"img_size": 96, "patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 3}, 60, 30),
}
DECODERS = {
    "tiny": {"decoder_embed_dim": 64, "decoder_depth": 2, "decoder_num_heads": 4},
    "small": {"decoder_embed_dim": 96, "decoder_depth": 2, "decoder_num_heads": 4},
}
_LONG = 20  # minutes from which on the larger size is the default
_LOOKED_AT = 64  # pictures, for their size


def size_for(minutes: float) -> str:
    """Returns the size that a time allows."""
    return "small" if minutes >= _LONG else "tiny"


def network(size: str, path: str) -> dict[str, int]:
    """Returns the sizes of a ViT: that of the images is halved, with its patches, where pictures are no larger.

    Args:
      size: one of `SIZES`.
      path: folder of the pictures; empty for a smoke run.
    """
    if size not in SIZES:
        raise unknown("size", size, SIZES)
    sizes = dict(SIZES[size][0])
    if path and shorter_side(path) <= sizes["img_size"] // 2:
        sizes.update(img_size=sizes["img_size"] // 2, patch_size=sizes["patch_size"] // 2)
    return sizes


def steps(size: str, minutes: float, *, classifies: bool = False) -> int:
    """Returns the number of steps of a phase of so many minutes: of pre-training, or of a classifier's training."""
    return max(round(SIZES[size][1 + classifies] * minutes), 1)


def shorter_side(path: str) -> float:
    """Returns the median of the shorter sides of some pictures of a folder, in pixels; infinity without any."""
    files = list(image_files(Path(path).expanduser()))
    sides = []
    for file in files[:: -(-len(files) // _LOOKED_AT) or 1]:
        try:
            with Image.open(file) as picture:
                sides.append(min(picture.size))
        except OSError:  # named and counted when it is read
            continue
    return statistics.median(sides) if sides else math.inf
