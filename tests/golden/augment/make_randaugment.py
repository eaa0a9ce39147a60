"""Writes randaugment.npz; run with PYTHONPATH=.:tests/data and Pillow 10.1."""

from pathlib import Path

import numpy as np
from pictures import odd_image
from PIL import Image

from jaxprune.data.randaugment import OPERATIONS

NUMBERS, STRENGTHS, FILL = (3, 8, 10, 32, 69), (0.0, 0.25, 0.5, 0.9, 1.0), (124, 116, 104)


def main() -> None:
    arrays = {
        f"{name}/{number}/{strength}": np.asarray(
            operation(Image.fromarray(odd_image(number)), strength, np.random.default_rng(number), FILL)
        )
        for name, operation in OPERATIONS.items()
        for number in NUMBERS
        for strength in STRENGTHS
    }
    np.savez_compressed(Path(__file__).with_name("randaugment.npz"), **arrays)


if __name__ == "__main__":
    main()
