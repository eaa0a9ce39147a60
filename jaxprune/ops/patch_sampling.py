"""Sampling of masked patches, and of those that the decoder reconstructs, and their numbers."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxprune.errors import UserError
from jaxprune.ops.tracing import on_host


def num_visible(num_patches: int, mask_ratio: float | int) -> int:
    """Returns how many patches masked pre-training leaves visible: int(num_patches · (1 - mask_ratio)), truncated.

    Raises:
      UserError: the ratio leaves none or is outside [0, 1).
    """
    count = int(num_patches * (1 - mask_ratio))
    if not 0 <= mask_ratio < 1 or count < 1:
        raise UserError(
            f"mask_ratio={mask_ratio} leaves {max(count, 0)} of {num_patches} patches visible; "
            "choose a ratio in [0, 1) that leaves at least one."
        )
    return count


def num_thrown(num_patches: int, throw_ratio: float | int) -> int:
    """Returns how many masked patches never enter the decoder: floor(num_patches · throw_ratio) (PR-MIM, Sec. 3.1).

    Raises:
      UserError: the ratio is outside [0, 1).
    """
    if not 0 <= throw_ratio < 1:
        raise UserError(f"throw_ratio={throw_ratio} is not a fraction of the patches; choose one in [0, 1).")
    # The epsilon corrects products such as 0.29 · 100 = 28.999….
    return math.floor(num_patches * throw_ratio + 1e-9)


def random_masking(
    noise: Float[Array, "b p"], num_keep: int
) -> tuple[Int[Array, "b {num_keep}"], Int[Array, "b p"], Bool[Array, "b p"]]:
    """Keeps the `num_keep` patches with the smallest noise in each image (MAE).

    Returns:
      (ids_keep, ids_restore, masked): the kept patches in order of their noise; each patch's rank in the order of all
      patches; and True where a patch is masked. Ids are int32.
    """
    order = jnp.argsort(noise, axis=1).astype(jnp.int32)
    ids_restore = jnp.argsort(order, axis=1).astype(jnp.int32)
    return order[:, :num_keep], ids_restore, ids_restore >= num_keep


def random_retained(
    noise: Float[Array, "p"], masked: Bool[Array | np.ndarray, "p"], num_retained: int
) -> Bool[Array, "p"]:
    """Retains `num_retained` random masked patches: those with the smallest noise. For one image; use vmap for more."""
    order = jnp.argsort(jnp.where(masked, noise, jnp.inf))
    return jnp.zeros(masked.shape, bool).at[order[:num_retained]].set(True) & masked


def checked_first(
    first: int | np.integer | Int[Array | np.ndarray, "*b"], num_masked: int | np.integer | Int[Array | np.ndarray, ""]
) -> Int[Array, "*b"]:
    """Returns the start of furthest point sampling as int32; values under `jax.jit` are clipped to the masked patches.

    >>> int(checked_first(3, 4))
    3

    Args:
      first: indices into a list of masked patches.
      num_masked: length of the list.

    Raises:
      UserError: a value that is known before compilation is outside [0, num_masked - 1].
    """
    values, length = on_host(first), on_host(num_masked)
    if values is None or length is None:
        return jnp.clip(jnp.asarray(first, jnp.int32), 0, num_masked - 1)
    _check_first(values, int(length))
    return jnp.asarray(first, jnp.int32)


def _check_first(first: np.ndarray, num_masked: int) -> None:
    if (wrong := first[(first < 0) | (first >= num_masked)]).size:
        raise UserError(
            f"first={wrong[0]} is not an index into the {num_masked} masked patches: pass one from 0 to "
            f"{num_masked - 1}."
        )


def furthest_sampling(
    masked: Bool[Array | np.ndarray, "p"],
    first: int | np.integer | Int[Array | np.ndarray, ""],
    num_retained: int,
    grid: tuple[int, int] | None = None,
) -> Int[Array, "{num_retained}"]:
    """Spreads the retained patches over the masked ones: each pick is the patch furthest from all earlier picks.

    PR-MIM, Algorithm 1, on squared integer distances (the same picks as the Euclidean ones); ties go to the lowest
    index. For one image, under jit and vmap.

    Args:
      masked: True where a patch is masked; at least `num_retained` must be.
      first: the first pick, as an index into the ascending list of masked patches.
      num_retained: picks to make.
      grid: patches down and across; None for a square grid.

    Returns:
      The picks in order, int32, as indices into the ascending list of masked patches.

    Raises:
      UserError: the grid does not fit the mask, or `num_retained` or `first` is out of range; a traced `first` is
        clipped instead.
    """
    _, order = furthest_retained(masked, first, num_retained, grid)
    rank = jnp.cumsum(jnp.asarray(masked, bool), dtype=jnp.int32) - 1
    return rank[order]


def furthest_retained(
    masked: Bool[Array | np.ndarray, "p"],
    first: int | np.integer | Int[Array | np.ndarray, ""],
    num_retained: int,
    grid: tuple[int, int] | None = None,
) -> tuple[Bool[Array, "p"], Int[Array, "{num_retained}"]]:
    """Picks as `furthest_sampling` does, in terms of the whole grid.

    Returns:
      (retained, order): True where a patch is retained; and the retained grid positions in the order of picking.
    """
    _, width = _checked_grid(masked.size, num_retained, grid)
    return _furthest(jnp.asarray(masked, bool), checked_first(first, masked.sum()), num_retained, width)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _furthest(masked: Array, first: Array, num_retained: int, width: int) -> tuple[Array, Array]:
    position = jnp.arange(masked.size, dtype=jnp.int32)
    row, column = position // width, position % width

    def pick(state, _):
        nearest, picked = state
        distance = (row - picked // width) ** 2 + (column - picked % width) ** 2
        nearest = jnp.minimum(nearest, distance)
        return (nearest, jnp.argmax(nearest).astype(jnp.int32)), picked

    # Visible patches get -1, below every distance, so they are never the furthest.
    nearest = jnp.where(masked, jnp.iinfo(jnp.int32).max, -1).astype(jnp.int32)
    start = jnp.argmax(jnp.cumsum(masked, dtype=jnp.int32) == first + 1).astype(jnp.int32)
    (nearest, _), order = jax.lax.scan(pick, (nearest, start), length=num_retained)
    return nearest == 0, order


def furthest_sampling_host(
    masked: Bool[np.ndarray, "p"], first: int | np.integer, num_retained: int, grid: tuple[int, int] | None = None
) -> Int[np.ndarray, "{num_retained}"]:
    """`furthest_sampling` in NumPy, with identical picks, for data workers and comparisons."""
    _, width = _checked_grid(masked.size, num_retained, grid)
    row, column = np.divmod(np.flatnonzero(masked), width)
    _check_first(np.asarray(first), len(row))  # NumPy only: data workers do not start JAX
    nearest = np.full(row.shape, np.iinfo(np.int64).max)
    order = np.empty(num_retained, np.int32)
    picked = int(first)
    for step in range(num_retained):
        order[step] = picked
        nearest = np.minimum(nearest, (row - row[picked]) ** 2 + (column - column[picked]) ** 2)
        picked = int(np.argmax(nearest))
    return order


def _checked_grid(num_patches: int, num_retained: int, grid: tuple[int, int] | None) -> tuple[int, int]:
    side = math.isqrt(num_patches)
    if grid is None and side * side != num_patches:
        raise UserError(f"{num_patches} patches are not a square grid; give grid=(rows, columns).")
    height, width = grid or (side, side)
    if height * width != num_patches:
        raise UserError(f"A {height}×{width} grid does not have {num_patches} patches; give the grid of the mask.")
    if not 1 <= num_retained <= num_patches:
        raise UserError(f"num_retained={num_retained} must be at least 1 and at most the {num_patches} patches.")
    return height, width
