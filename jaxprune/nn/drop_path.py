"""Stochastic depth: a residual branch is dropped for some images of the batch."""

import jax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError


class DropPath(nnx.Module):
    """Drops the branch of each image with probability `rate` and rescales the others (Huang et al., 2016).

    Raises:
      UserError: the rate is not from 0 to below 1.
    """

    def __init__(self, rate: float = 0.0):
        if not 0 <= rate < 1:
            raise UserError(f"drop_path_rate={float(rate):g} is not a rate: use a number from 0 to below 1.")
        self.rate = float(rate)

    def __call__(self, x: Float[Array, "b ..."], key: PRNGKeyArray | None) -> Float[Array, "b ..."]:
        """Drops branches; without a key (evaluation) nothing is dropped."""
        if key is None or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        kept = jax.random.bernoulli(key, keep, (x.shape[0],) + (1,) * (x.ndim - 1))
        return x * (kept.astype(x.dtype) / keep)
