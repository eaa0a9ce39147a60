"""Stochastic depth: a residual branch is dropped for some images of the batch."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray


class DropPath(nnx.Module):
    """Drops the branch of each image with probability `rate` and rescales the others (Huang et al., 2016).

    Args:
      rate: a number, or the scalar of a loop over blocks with other rates (`nn.scan_blocks`).
    """

    def __init__(self, rate: float | Array = 0.0):
        self.rate: Any = nnx.data(rate) if isinstance(rate, jax.Array) else float(rate)

    def __call__(self, x: Float[Array, "b ..."], key: PRNGKeyArray | None) -> Float[Array, "b ..."]:
        """Drops branches; without a key (evaluation) nothing is dropped."""
        if key is None or (isinstance(self.rate, float) and self.rate == 0.0):
            return x
        keep = 1.0 - self.rate
        kept = jax.random.bernoulli(key, keep, (x.shape[0],) + (1,) * (x.ndim - 1))
        return x * (kept.astype(x.dtype) / keep)
