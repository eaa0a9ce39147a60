"""Static tubes: tubelets that do not change are dropped first (Run-Length Tokenization; Choudhury et al., 2024)."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import UserError, unknown
from jaxprune.scoring.parts.base import Scorer

COMPARE = ("ends", "tubelets")


class StaticTubes(Scorer):
    """The change of each tubelet relative to the one before it at the same position; no network, no training.

    The change is a mean absolute difference of pixels. The first tubelets of a clip have no predecessor and score
    highest, ordered by how much their position changes afterwards.

    Run-Length Tokenization drops the tubelets that change by a threshold or less, a different number in each clip. Here
    counts are static: `from_scores` keeps the plan's number of tubelets. Where it equals the published number (see
    `changed`), these are the same tubelets; otherwise some are added, the most changed of the others, or left out.

    >>> import jax.numpy as jnp; from jaxprune import scoring
    >>> clips = jnp.zeros((1, 4, 8, 8, 3)).at[:, 3, :4, :4].set(1.0)
    >>> tubes = scoring.create("static_tubes", grid=(2, 2, 2))
    >>> changed = tubes.changed(clips, threshold=0.1)
    >>> changed.sum(1)
    Array([5], dtype=int32)
    >>> run_lengths(changed, tubes.grid)
    Array([[1, 2, 2, 2, 1, 0, 0, 0]], dtype=int32)

    Args:
      compare: "ends", the last frame of a tubelet with the first of the one before, as published; or "tubelets", every
        frame with the same frame of the one before.
    """

    dims: ClassVar = (3,)

    def __init__(self, *, compare: str = "ends", **kwargs: Any):
        super().__init__(**kwargs)
        if compare not in COMPARE:
            raise unknown("compare", compare, COMPARE)
        self.compare = compare

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        later = self.changes(images)
        if not later.shape[1]:
            return jnp.zeros((images.shape[0], self.num_patches))
        # At least as large as any change; ties go to the lower index.
        first = later.max((1, 2, 3), keepdims=True) + later.mean(1, keepdims=True)
        return jnp.concatenate([first, later], axis=1).reshape(images.shape[0], -1)

    def changes(self, images: Float[Array, "b T H W c"]) -> Float[Array, "b s h w"]:
        """The change of every tubelet except the first ones, in pixel units.

        Raises:
          UserError: the images are not clips, or not a whole number of tubelets.
        """
        grid, sides = self.grid, images.shape[1:-1]
        if len(sides) != 3 or any(side % count for side, count in zip(sides, grid, strict=True)):
            raise UserError(
                f"static_tubes reads clips (batch, frames, height, width, channels) that divide into {grid} tubelets, "
                f"and these are {tuple(images.shape)}: crop or resize them, or pass another grid."
            )
        frames = sides[0] // grid[0]
        if self.compare == "ends":
            before, after = images[:, :-frames:frames], images[:, 2 * frames - 1 :: frames]
        else:
            before, after = images[:, :-frames], images[:, frames:]
        difference = jnp.abs(after.astype(jnp.float32) - before.astype(jnp.float32))
        b, t, height, width, c = difference.shape
        cells = difference.reshape(
            b, grid[0] - 1, t // max(grid[0] - 1, 1), grid[1], height // grid[1], grid[2], width // grid[2], c
        )
        return cells.mean((2, 4, 6, 7))

    def changed(self, images: Float[Array, "b T H W c"], threshold: float) -> Bool[Array, "b p"]:
        """The tubelets that Run-Length Tokenization keeps: the first ones, and those with a change above `threshold`.

        Args:
          threshold: in pixel units.
        """
        later = self.changes(images) > threshold
        first = jnp.ones((images.shape[0], 1, *self.grid[1:]), bool)
        return jnp.concatenate([first, later], axis=1).reshape(images.shape[0], -1)


def run_lengths(kept: Bool[Array, "b p"], grid: tuple[int, int, int]) -> Int[Array, "b p"]:
    """How many tubelets each kept one stands for: itself and those dropped behind it at its place; 0 for dropped ones.

    Run-Length Tokenization adds a learned embedding of this length to the token. Its published code lists the lengths
    by place and then by time, and the tokens by time first; here every tubelet has its own.

    Args:
      kept: True for tubelets that are kept, in raster order.
      grid: (frames, rows, columns) of tubelets.
    """
    frames = grid[0]
    by_time = kept.reshape(-1, *grid)
    number = jnp.arange(frames, dtype=jnp.int32)[None, :, None, None]
    following = jax.lax.cummin(jnp.where(by_time, number, frames), axis=1, reverse=True)
    following = jnp.pad(following[:, 1:], ((0, 0), (0, 1), (0, 0), (0, 0)), constant_values=frames)
    return jnp.where(by_time, following - number, 0).reshape(kept.shape)
