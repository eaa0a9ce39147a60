"""A random picture and the patches that tests select in it."""

import numpy as np

GRID = (2, 3)
IMAGE = np.random.default_rng(0).integers(0, 256, (16, 24, 3)).astype(np.uint8)
SELECTED = np.array([0, 1, 0, 0, 0, 1], bool)


def patches(image: np.ndarray, grid: tuple[int, int] = GRID) -> np.ndarray:
    """Splits a picture (H, W, 3) into patches (p, h, w, 3)."""
    height, width = image.shape[0] // grid[0], image.shape[1] // grid[1]
    return image.reshape(grid[0], height, grid[1], width, 3).swapaxes(1, 2).reshape(-1, height, width, 3)


def changed_patches(drawn: np.ndarray) -> np.ndarray:
    """Returns which patches of `drawn` differ from those of `IMAGE`."""
    return (patches(drawn) != patches(IMAGE)).any(axis=(1, 2, 3))
