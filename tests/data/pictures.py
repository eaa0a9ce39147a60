"""Pictures and folders of them, made where a test wants them."""

import numpy as np
from PIL import Image


def picture(number: int, size: tuple[int, int] = (24, 24)) -> Image.Image:
    """A picture like no other, (width, height)."""
    rng = np.random.default_rng(number)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


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
