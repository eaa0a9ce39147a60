"""Stochastic depth: a residual branch is dropped for some images of the batch."""

import jax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray


class DropPath(nnx.Module):
    """Drops the branch of each image with probability `rate` and rescales the others (Huang et al., 2016)."""

    def __init__(self, rate: float = 0.0):
        self.rate = float(rate)

    def __call__(self, x: Float[Array, "b ..."], key: PRNGKeyArray | None) -> Float[Array, "b ..."]:
        """Drops branches; without a key (evaluation) nothing is dropped."""
        if key is None or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        kept = jax.random.bernoulli(key, keep, (x.shape[0],) + (1,) * (x.ndim - 1))
        return x * (kept.astype(x.dtype) / keep)
