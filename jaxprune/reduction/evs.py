"""EVS: drop the tubes of a clip that look like the ones before them (Bagrov et al., 2025; as in vLLM)."""

import math

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.reduction.parts import cosines
from jaxprune.reduction.parts.base import Reducer, Step
from jaxprune.reduction.parts.keep_rows import best, keep_rows, unchanged

FIRST = 255.0


def dissimilarity(x: Float[Array, "b n d"], grid: tuple[int, int, int]) -> Float[Array, "b n"]:
    """1 - cosine of each row with that at the same place in the frame before; `FIRST` in the first frame.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]])
    >>> dissimilarity(x, (2, 1, 2)).tolist()
    [[255.0, 255.0, 0.0, 1.0]]

    Args:
      x: all rows of a clip in raster order.
      grid: (frames, rows, columns).
    """
    place = math.prod(grid[1:])
    rows = cosines.unit(x)
    later = 1 - (rows[:, place:] * rows[:, :-place]).sum(-1)
    return jnp.pad(later, ((0, 0), (place, 0)), constant_values=FIRST)


class EVS(Reducer):
    """Keeps the rows with the largest `dissimilarity` of a clip, in their order; the first frame always stays.

    It compares the rows that enter the block with one another, so it is the first step of a plan; one threshold applies
    to the whole clip.
    """

    where = "before"
    drops = True
    dims = (3,)
    needs_map = True

    def __init__(self, step: Step, *, rngs: nnx.Rngs | None = None):
        super().__init__(step)
        frame = math.prod(step.grid[1:])
        if step.num_keep < frame:
            share = math.ceil(1e4 / step.grid[0]) / 1e4
            raise UserError(
                f"evs keeps the first frame, {frame} of the {step.tokens_in} rows of a clip, and the plan keeps "
                f"{step.num_keep} at block {step.layer}: use keep_rate={share} or num_keep={frame}."
            )

    def flops(self) -> int:
        """n·d for the cosines of the rows behind the first frame."""
        return (self.step.tokens_in - math.prod(self.step.grid[1:])) * self.step.embed_dim

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, num_keep = self.step.num_prefix_tokens, self.step.num_keep
        if num_keep == self.step.tokens_in:
            return unchanged(tokens, prefix)
        frames, height, width = self.step.grid
        scores = dissimilarity(tokens.x[:, prefix:], (frames, height, width))
        return keep_rows(tokens, jnp.sort(best(scores, num_keep), axis=1), prefix)
