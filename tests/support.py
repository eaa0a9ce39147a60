"""What several test files share: golden files and their layout."""

from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> dict[str, np.ndarray]:
    """Returns the arrays of `tests/golden/<name>.npz`."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        return dict(file)


def weights(arrays: dict[str, np.ndarray], prefix: str = "w/") -> dict[str, np.ndarray]:
    """Returns the published tensors of a golden file, under their published names."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def nhwc(images: np.ndarray) -> np.ndarray:
    """Golden images are NCHW; ours are NHWC."""
    return np.transpose(images, (0, 2, 3, 1))
