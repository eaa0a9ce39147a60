"""Batch normalisation, in float32 whatever the compute dtype."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

MOMENTUM = 0.1  # weight of a batch in the running statistics
BATCH_STATS = "running"  # name of the statistics in what training keeps, and in what a loss reports of its batch


class BatchNorm(nnx.Module):
    """Normalises each channel by running statistics, or by batch statistics in training (Ioffe and Szegedy, 2015).

    Training updates the running statistics, `mean` and `var` (unbiased), in place; they are not parameters. On a
    sharded batch the statistics are over the whole batch.
    """

    def __init__(self, features: int, *, eps: float = 1e-5):
        self.scale = nnx.Param(jnp.ones((features,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((features,), jnp.float32))
        self.mean = nnx.BatchStat(jnp.zeros((features,), jnp.float32))
        self.var = nnx.BatchStat(jnp.ones((features,), jnp.float32))
        self.eps = eps

    def __call__(self, x: Float[Array, "*places c"], *, train: bool = False) -> Float[Array, "*places c"]:
        wide = x.astype(jnp.float32)
        places = tuple(range(x.ndim - 1))
        last = (*(None for _ in places), slice(None))
        mean, var = self.mean[...], self.var[...]
        if train:
            mean = wide.mean(places)
            var = jnp.square(wide - mean[last]).mean(places)
            count = x.size // x.shape[-1]
            for running, new in ((self.mean, mean), (self.var, var * (count / max(count - 1, 1)))):
                running[...] = running[...] + MOMENTUM * (jax.lax.stop_gradient(new) - running[...])
        factor = jax.lax.rsqrt(var + self.eps) * self.scale[...]
        shift = self.bias[...] - mean * factor
        return (wide * factor[last] + shift[last]).astype(x.dtype)

    def folded(self, kernel: Float[Array, "k k i c"]) -> tuple[Float[Array, "k k i c"], Float[Array, "c"]]:
        """Folds this norm into the preceding convolution: returns the kernel and bias of the equivalent convolution."""
        factor = self.scale[...] * jax.lax.rsqrt(self.var[...] + self.eps)
        return kernel * factor[None, None, None, :], self.bias[...] - self.mean[...] * factor


def batch_stats(after: Mapping[str, jax.Array], before: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Recovers the statistics of a batch from the running statistics before and after it.

    Args:
      after: {dotted name: array}, the running statistics after the batch.
      before: the running statistics before it.
    """
    return {name: jax.lax.stop_gradient((after[name] - (1 - MOMENTUM) * before[name]) / MOMENTUM) for name in before}


class RunningStats(NamedTuple):
    """Running statistics that training keeps and moves towards those of each batch; a `train.state.Keeper`.

    Attributes:
      start: the statistics before the first step, {dotted name: array}.
    """

    start: dict[str, Array]

    name = BATCH_STATS
    averaged = True  # averaged parameters have averaged statistics, as in timm

    def initial(self, params: Mapping[str, Array]) -> dict[str, Array]:
        """The statistics before the first step."""
        return self.start

    def updated(
        self, kept: Mapping[str, Array], observed: Mapping[str, Array], steps: Int[Array, ""], params: Mapping
    ) -> dict[str, Array]:
        """The statistics after a batch with the statistics `observed`."""
        return {name: MOMENTUM * observed[name] + (1.0 - MOMENTUM) * array for name, array in kept.items()}
