"""Fixed radial patterns: the patches nearest the centre of the image, by a norm, ring by ring.

A grid of G patches per side has evenly spaced coordinates from floor(-G/2) to floor(G/2), so an odd grid is off centre,
as published. A step keeps the disc whose number of patches is closest to the plan's (the smaller one in a tie), and
reports that count. The published code masks the other patches as keys; they are removed here, which gives the kept
tokens the same values.

For the tubes of a clip, time is an axis like the others, so a step keeps a ball around the middle of the clip; with
`per_frame`, the same disc in every frame. The papers only treat images.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune.errors import UserError
from jaxprune.reduction.parts.base import Step
from jaxprune.reduction.parts.keep_rows import keep_rows, unchanged

# Norms of coordinates, one open-mesh array per axis.
NORMS = {
    "l1": lambda *axes: functools.reduce(np.add, map(np.abs, axes)),
    "l2": lambda *axes: np.sqrt(functools.reduce(np.add, [x * x for x in axes])),
    "linf": lambda *axes: functools.reduce(np.maximum, map(np.abs, axes)),
}


def radii(norm: str, grid: tuple[int, ...], *, reference: bool = False) -> np.ndarray:
    """The distance of every patch from the centre, in units of about one patch, in the shape of the grid.

    Equal distances are exactly equal: the coordinates are integers until the norm is taken. With `reference` they are
    float32, as published, where rounding splits some rings of the l1 and l2 norms.
    """
    if reference:
        return NORMS[norm](*np.ix_(*map(_float32_coordinates, grid)))
    steps = [max(side - 1, 1) for side in grid]
    product = math.prod(steps)
    centred = (np.arange(side) * side - (side + 1) // 2 * step for side, step in zip(grid, steps, strict=True))
    scaled = (places * (product // step) for places, step in zip(centred, steps, strict=True))
    return NORMS[norm](*np.ix_(*scaled)) / product


def _float32_coordinates(side: int) -> np.ndarray:
    # As torch.linspace does: in float32 steps, from the start in the first half and from the end in the second, with
    # one rounding for product and sum (FMA).
    start, end = side // -2, side // 2
    step = np.float64(np.float32(end - start) / np.float32(max(side - 1, 1)))
    i = np.arange(side)
    return np.where(i < side // 2, start + step * i, end - step * (side - 1 - i)).astype(np.float32)


def disc(radii: np.ndarray, num_keep: int) -> np.ndarray:
    """Ids of the patches within the radius that contains about `num_keep` patches, in rising order."""
    rings, sizes = np.unique(radii, return_counts=True)
    radius = rings[np.argmin(np.abs(np.cumsum(sizes) - num_keep))]
    return np.flatnonzero(radii <= radius)


def evenly_spaced(radii: np.ndarray, num_steps: int, min_radius: float | int | None, *, first: int) -> np.ndarray:
    """Evenly spaced radii, falling from that of the corner patch towards `min_radius`, one per step.

    As published, there are two radii more than steps, and the last one, `min_radius` itself, is not reached. The first
    one, that of the corner, is that of the block before the first step; a plan that starts at block 0 has no such
    block, so its first step keeps all patches.

    Args:
      radii: distances of the patches.
      num_steps: number of steps, in consecutive blocks.
      min_radius: None, or a radius that is not positive, means that of the innermost patch.
      first: the block of the first step, from 0.
    """
    inner = radii[tuple(side // 2 for side in radii.shape)]
    last = inner if min_radius is None or min_radius <= 0 else min_radius
    start = min(first, 1)
    return np.linspace(radii.flat[0], last, num_steps + 2)[start : start + num_steps]


class RadialPattern:
    """The base of the reducers of the three norms.

    Args:
      reference: float32 distances as published, which split rings of equal radius.
      contiguous: evenly spaced radii instead of the plan's counts, for plans that reduce in consecutive blocks.
      min_radius: the radius that they approach; see `evenly_spaced`.
      per_frame: on a grid (frames, rows, columns), the disc of the last two in every frame.
    """

    where = "before"
    drops = True
    norm: ClassVar[str]
    step: Step

    @classmethod
    def check_arriving(cls, at: Any, arriving: int, earlier: Sequence[Any]) -> None:
        """Raises a `UserError` unless the rows that arrive are a disc of the same rule; see `Reducer`."""
        options = dict(at.options)
        rule = tuple(bool(options.get(name, False)) for name in ("reference", "per_frame"))
        same_rule = lambda reducer: isinstance(reducer, cls) and reducer.rule == rule
        if not earlier or not all(map(same_rule, earlier)):
            raise _no_disc(cls.norm, at.layer, arriving)

    @classmethod
    def follows_count(cls, options: Mapping[str, Any]) -> bool:
        """Whether the plan's counts apply; see `Reducer`."""
        return not options.get("contiguous", False)

    def __init__(
        self,
        step: Step,
        *,
        reference: bool = False,
        contiguous: bool = False,
        min_radius: float | int | None = 1.0,
        per_frame: bool = False,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(step)  # pyright: ignore[reportCallIssue] - a Reducer comes next in line
        if per_frame and len(step.grid) != 3:
            raise UserError(f"per_frame=True is for the tubes of clips, and this grid is {step.grid}: leave it out.")
        place = step.grid[1:] if per_frame else step.grid
        distance = np.broadcast_to(radii(self.norm, place, reference=reference), step.grid)
        if contiguous:
            # A ring at the threshold is inside, whatever its rounding.
            spaced = evenly_spaced(distance, step.num_steps, min_radius, first=max(step.layer - step.index, 0))
            radius = spaced[step.index] * (1 + 1e-6)
            after = np.flatnonzero(distance <= radius)
        else:
            after = disc(distance, step.num_keep)
        if not len(after):
            raise UserError(f"min_radius {min_radius} leaves no patch of {step.grid}: use {distance.min():.3g}.")
        # Discs of one norm differ in their counts, so the number of incoming rows identifies them.
        arriving = disc(distance, step.tokens_in)
        if len(arriving) != step.tokens_in:
            raise _no_disc(self.norm, step.layer, step.tokens_in)
        self.rule = (reference, per_frame)
        self.ids: tuple[int, ...] = tuple(np.searchsorted(arriving, after).tolist())

    def num_tokens(self) -> int:
        return len(self.ids)

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple[Any, Any]:
        if len(self.ids) == self.step.tokens_in:
            return unchanged(tokens, self.step.num_prefix_tokens)
        ids = jnp.broadcast_to(jnp.asarray(self.ids, jnp.int32)[None, :], (tokens.x.shape[0], len(self.ids)))
        return keep_rows(tokens, ids, self.step.num_prefix_tokens)


def _no_disc(norm: str, layer: int | str, arriving: int) -> UserError:
    return UserError(
        f"{norm} at block {layer} takes rows ring by ring, and the {arriving} rows that arrive are not one of its "
        "discs: make it the first method that removes rows."
    )
