"""Fixed radial patterns: the patches nearest the centre of the image, by a norm, ring by ring.

A grid of G patches a side has coordinates in even steps from floor(-G/2) to floor(G/2), so an odd grid is off centre,
as published. A stage keeps the disc whose number of patches is closest to what the plan wants (of two equally close the
smaller), which is the count that it reports. Masking the other patches as keys, as published, gives every kept token
the same value as taking them away; they are taken away.
"""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune.errors import UserError
from jaxprune.reduction.base import Stage
from jaxprune.reduction.clusters import unchanged
from jaxprune.reduction.rows import keep_rows

NORMS = {
    "l1": lambda y, x: np.abs(y) + np.abs(x),
    "l2": lambda y, x: np.sqrt(y * y + x * x),
    "linf": lambda y, x: np.maximum(np.abs(y), np.abs(x)),
}


def radii(norm: str, grid: tuple[int, int], *, reference: bool = False) -> np.ndarray:
    """The distance of every patch from the centre in steps of about a patch, (rows, columns).

    Equal distances come out equal: the coordinates are integers until the norm is taken. With `reference` they are
    float32 as published, where rounding splits some rings of the l1 and l2 norms.
    """
    if reference:
        y, x = (_float32_coordinates(side) for side in grid)
        return NORMS[norm](y[:, None], x[None, :])
    steps = [max(side - 1, 1) for side in grid]
    y, x = (np.arange(side) * side - (side + 1) // 2 * step for side, step in zip(grid, steps, strict=True))
    return NORMS[norm](y[:, None] * steps[1], x[None, :] * steps[0]) / (steps[0] * steps[1])


def _float32_coordinates(side: int) -> np.ndarray:
    # As torch spaces evenly: in float32 steps, from the start in the first half and from the end in the second, with
    # one rounding for product and sum.
    start, end = side // -2, side // 2
    step = np.float64(np.float32(end - start) / np.float32(max(side - 1, 1)))
    i = np.arange(side)
    return np.where(i < side // 2, start + step * i, end - step * (side - 1 - i)).astype(np.float32)


def disc(radii: np.ndarray, num_keep: int) -> np.ndarray:
    """Ids of the patches within the radius that holds nearly `num_keep` patches, in rising order."""
    rings, sizes = np.unique(radii, return_counts=True)
    radius = rings[np.argmin(np.abs(np.cumsum(sizes) - num_keep))]
    return np.flatnonzero(radii <= radius)


def evenly_spaced(radii: np.ndarray, num_stages: int, min_radius: float | int | None) -> np.ndarray:
    """Radii that fall in even steps from the corner patch's to `min_radius`, one for each stage.

    None, or a radius of 0, stands for the innermost patch's.
    """
    last = min_radius or radii[radii.shape[0] // 2, radii.shape[1] // 2]
    return np.linspace(radii[0, 0], last, num_stages + 1)[1:]


class RadialPattern:
    """What the reducers of the three norms share.

    Args:
      reference: float32 distances as published, which split rings of equal radius.
      contiguous: radii in even steps, in place of the plan's counts; meant for a plan that reduces in a row of blocks.
      min_radius: the radius of the last stage when contiguous.
    """

    where = "before"
    norm: ClassVar[str]
    stage: Stage

    def __init__(
        self,
        stage: Stage,
        *,
        reference: bool = False,
        contiguous: bool = False,
        min_radius: float | int | None = 1.0,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(stage)  # pyright: ignore[reportCallIssue] - a Reducer comes next in line
        distance = radii(self.norm, stage.grid, reference=reference)
        if contiguous:
            # A ring on the threshold is inside it, whatever its last bit.
            radius = evenly_spaced(distance, stage.num_stages, min_radius)[stage.index] * (1 + 1e-6)
            after = np.flatnonzero(distance <= radius)
        else:
            after = disc(distance, stage.num_keep)
        if not len(after):
            raise UserError(f"min_radius {min_radius} leaves no patch of {stage.grid}: use {distance.min():.3g}.")
        # Discs of one norm differ in their counts, so the rows that arrive are known by how many they are.
        self.ids: tuple[int, ...] = tuple(np.searchsorted(disc(distance, stage.rows_in), after).tolist())

    def num_rows(self) -> int:
        return len(self.ids)

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple[Any, Any]:
        if len(self.ids) == self.stage.rows_in:
            return unchanged(tokens, self.stage.num_prefix_tokens)
        ids = jnp.broadcast_to(jnp.asarray(self.ids, jnp.int32)[None, :], (tokens.x.shape[0], len(self.ids)))
        return keep_rows(tokens, ids, self.stage.num_prefix_tokens)
