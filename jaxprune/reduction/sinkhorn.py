"""Sinkhorn: tokens are distributed over learned directions by optimal transport (Haurum et al., 2023, Sec. 3)."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn import logsumexp
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.nn import attention_kernels
from jaxprune.ops.platform import platform
from jaxprune.ops.row_sums import sum_of_rows
from jaxprune.reduction.parts import clusters
from jaxprune.reduction.parts.base import Reducer
from jaxprune.reduction.parts.mixtures import Logits, Mixture, mixed

_SMALLEST_EPS = 0.05  # exponentials of cosines over it are between e⁻²⁰ and e²⁰


def unit(x: Float[Array, "*lead d"]) -> Float[Array, "*lead d"]:
    """Normalises the last axis to unit length, in float32; 0 stays 0."""
    x = x.astype(jnp.float32)
    squared = jnp.square(x).sum(-1, keepdims=True)
    # The gradient of the square root is infinite at 0.
    return x * jax.lax.rsqrt(jnp.maximum(squared, 1e-24))


def transport(scores: Float[Array, "b k n"], eps: float = 1.0, iterations: int = 3) -> Float[Array, "b k n"]:
    """Entropic optimal transport of tokens to clusters, by Sinkhorn's iterations.

    Both marginals are 1/(k + n), as in the published code. Every token's weights sum to one over the clusters. Scores
    are cosines: where `eps` allows, one exponential of them serves all iterations; else they are in the log domain.
    """
    if eps < _SMALLEST_EPS:
        return _transport_of_logarithms(scores / eps, iterations)
    marginal = 1 / (scores.shape[1] + scores.shape[2])
    kernel = jnp.exp(scores / eps)
    of_token = jnp.ones((scores.shape[0], scores.shape[2]), scores.dtype)
    for _ in range(iterations):
        of_cluster = marginal / _weighted_sum(kernel, of_token, axis=2)
        of_token = marginal / _weighted_sum(kernel, of_cluster, axis=1)
    return kernel * of_cluster[:, :, None] * (of_token / marginal)[:, None, :]


def _weighted_sum(kernel: Float[Array, "b k n"], weights: Float[Array, "b _"], axis: int) -> Float[Array, "b _"]:
    """The sum of the kernel over an axis, times weights."""
    if platform() != "tpu":
        return (kernel * jnp.expand_dims(weights, 3 - axis)).sum(axis)
    return sum_of_rows(kernel if axis == 1 else kernel.swapaxes(1, 2), weights)


def _transport_of_logarithms(z: Float[Array, "b k n"], iterations: int) -> Float[Array, "b k n"]:
    marginal = -math.log(z.shape[1] + z.shape[2])
    of_token = jnp.zeros((z.shape[0], 1, z.shape[2]), z.dtype)
    for _ in range(iterations):
        of_cluster = marginal - logsumexp(z + of_token, axis=2, keepdims=True)
        of_token = marginal - logsumexp(z + of_cluster, axis=1, keepdims=True)
    return jnp.exp(z + of_cluster + of_token - marginal)


def transport_in_blocks(logits: Logits, iterations: int = 3) -> Mixture:
    """As `transport`, with `scores / eps` never held as a whole matrix."""
    marginal = -math.log(len(logits.directions) + logits.features.shape[1])
    of_row, of_token = jnp.zeros(()), jnp.zeros(logits.features.shape[:2])
    for _ in range(iterations):
        of_row = marginal - logits.by_row(lambda z, c=of_token: logsumexp(z + c[:, None, :], axis=2))
        of_token = marginal - logits.by_token(lambda z, a=of_row: logsumexp(z + a[:, :, None], axis=1))
    return Mixture(logits, of_row - marginal, of_token)


class Sinkhorn(Reducer):
    """Row k is Σ_n W_kn x̂_n, x̂ the tokens at unit length and W their transport to learned unit directions v_k.

    The rows are sums of unit vectors over all tokens, so keep rate 1 is not the dense model.

    Args:
      eps: temperature of the transport.
      iterations: number of Sinkhorn iterations.
    """

    where = "before"
    drops = False
    identity_at_one = False
    needs_present = True
    published = "cluster_layers"
    constraints: ClassVar = {"v": lambda v: v / jnp.linalg.norm(v, axis=-1, keepdims=True)}

    def __init__(self, step, *, eps: float = 1.0, iterations: int = 3, rngs: nnx.Rngs | None = None):
        super().__init__(step)
        if not eps > 0:
            raise UserError(f"eps={eps}: sinkhorn needs a temperature above 0, such as 1.0.")
        if iterations < 1:
            raise UserError(f"iterations={iterations}: sinkhorn needs at least 1.")
        rngs = clusters.needed(rngs, "sinkhorn")
        self.eps, self.iterations = float(eps), iterations
        self.v = nnx.Param(unit(jax.random.normal(rngs.params(), (step.num_keep, step.embed_dim), jnp.float32)))

    def flops(self) -> int:
        """2·k·n·d: the products of k directions with the n incoming rows, and the mixing.

        The iterations in between consist of exponentials and sums of k·n numbers, no products.
        """
        return 2 * self.step.num_keep * self.step.tokens_in * self.step.embed_dim

    def directions(self) -> Float[Array, "k d"]:
        """The learned directions at unit length.

        The published code overwrites its parameter with these in every forward pass, without a gradient through the
        normalisation. Here the gradient is the same, and training normalises the parameter after every update.
        """
        v = self.v[...]
        return v + jax.lax.stop_gradient(unit(v) - v)

    def mix(self, x: Float[Array, "b n d"]) -> tuple[Float[Array, "b k d"], Float[Array, "b k n"]]:
        """The new rows, and the weights with which they mix the unit-length tokens."""
        length_one = unit(x)
        scores = clusters.project(length_one, self.directions())
        weights = transport(scores, self.eps, self.iterations)
        return weights.astype(x.dtype) @ length_one.astype(x.dtype), weights

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix = self.step.num_prefix_tokens
        if attention_kernels.row_block() is not None:
            x = unit(tokens.x[:, prefix:])
            weights = transport_in_blocks(Logits(self.directions(), x, 1 / self.eps), self.iterations)
            return mixed(tokens, x.astype(tokens.x.dtype), weights, self.step)
        rows, weights = self.mix(tokens.x[:, prefix:])
        return clusters.mixed(tokens, rows, weights, self.step)
