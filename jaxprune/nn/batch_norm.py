"""Batch normalisation, in float32 whatever the compute dtype."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

MOMENTUM = 0.1  # of a batch in the running statistics


class BatchNorm(nnx.Module):
    """Normalises each channel by its running statistics, in training by those of the batch (Ioffe and Szegedy, 2015).

    Training writes the running statistics, `mean` and `var` (unbiased), in place; they are no parameters. On a sharded
    batch the statistics are those of the whole batch.

    Args:
      momentum: weight of a batch in the running statistics.
    """

    def __init__(self, features: int, *, eps: float = 1e-5, momentum: float = MOMENTUM):
        self.scale = nnx.Param(jnp.ones((features,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((features,), jnp.float32))
        self.mean = nnx.BatchStat(jnp.zeros((features,), jnp.float32))
        self.var = nnx.BatchStat(jnp.ones((features,), jnp.float32))
        self.eps, self.momentum = eps, momentum

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
                running[...] = running[...] + self.momentum * (jax.lax.stop_gradient(new) - running[...])
        factor = jax.lax.rsqrt(var + self.eps) * self.scale[...]
        shift = self.bias[...] - mean * factor
        return (wide * factor[last] + shift[last]).astype(x.dtype)

    def folded(self, kernel: Float[Array, "k k i c"]) -> tuple[Float[Array, "k k i c"], Float[Array, "c"]]:
        """The kernel and the bias of one convolution that does what `kernel` and this norm do in evaluation."""
        factor = self.scale[...] * jax.lax.rsqrt(self.var[...] + self.eps)
        return kernel * factor[None, None, None, :], self.bias[...] - self.mean[...] * factor


def observed(written: Mapping[str, jax.Array], before: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns a batch's own statistics, of which `BatchNorm` in training mixed its share into those `before`.

    Args:
      written: {dotted name: array} of the running statistics after the batch.
      before: the same before it.
    """
    return {name: jax.lax.stop_gradient((written[name] - (1 - MOMENTUM) * before[name]) / MOMENTUM) for name in before}
