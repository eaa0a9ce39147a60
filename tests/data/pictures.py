"""Pictures and folders of them, made where a test wants them."""

import numpy as np
from PIL import Image


def picture(number: int, size: tuple[int, int] = (24, 24)) -> Image.Image:
    """A picture like no other, (width, height)."""
    rng = np.random.default_rng(number)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


ODD_SIZES = ((1, 1), (1, 7), (7, 1), (2, 3), (3, 2), (1, 64), (64, 1), (5, 5), (8, 13), (17, 9), (16, 16), (33, 47))


def odd_image(number: int) -> np.ndarray:
    """One image of a series of all odd sizes and contents: noise, one colour, grey, two values, extremes, a ramp."""
    rng = np.random.default_rng(number)
    content, size = divmod(number, len(ODD_SIZES))
    height, width = ODD_SIZES[size]
    shape = (height, width, 3)
    ramp = np.add.outer(np.arange(height), np.arange(width))[..., None]
    pixels = (
        lambda: rng.integers(0, 256, shape),
        lambda: np.broadcast_to(rng.integers(0, 256, 3), shape),
        lambda: np.repeat(rng.integers(0, 256, (height, width, 1)), 3, axis=-1),
        lambda: rng.choice([0, 255], shape),
        lambda: np.full(shape, rng.choice([0, 127, 128, 255])),
        lambda: np.clip(ramp * rng.uniform(0, 12, 3) + rng.integers(0, 100, 3), 0, 255),
    )[content % 6]()
    return np.ascontiguousarray(pixels.astype(np.uint8))


def fill(root, classes, per_class, size=(24, 24), suffix="png"):
    """Makes root/<class>/<number>.<suffix>."""
    for c, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            picture(100 * c + i, size).save(root / name / f"{i:03d}.{suffix}")
    return root


def break_files(*paths):
    """Cuts the first file in half and turns the others into text."""
    data = paths[0].read_bytes()
    paths[0].write_bytes(data[: len(data) // 2])
    for path in paths[1:]:
        path.write_text("no picture")
