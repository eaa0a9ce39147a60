"""Learned mixtures of all tokens, computed without ever holding the whole weight matrix.

Weights are W_kn = exp(z_kn + a_k + c_n) with z_kn = scale · u_k · h_n: directions u_k of the outgoing rows, features
h_n of the tokens. A softmax over the tokens has c = 0 and a_k = -log Σ_n exp(z_kn); Sinkhorn's iterations yield an a
and a c. Rows or columns of W are recomputed in blocks where they are needed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.nn import logsumexp
from jaxtyping import Array, Float

from jaxprune.nn import attention_kernels
from jaxprune.nn.tokens import Tokens
from jaxprune.ops.blocks import by_rows
from jaxprune.reduction.parts.base import Step, StepReport
from jaxprune.reduction.parts.clusters import behind_prefix, first_min, project
from jaxprune.reduction.parts.merged_position import merged_position


class Logits(NamedTuple):
    """z_kn = scale · u_k · h_n."""

    directions: Float[Array, "k e"]
    features: Float[Array, "b n e"]
    scale: Float[Array, "1 1 1"] | float = 1.0

    def by_row(self, f: Callable[..., Any], *rows: Array) -> Any:
        """Returns `f(z, *rows)`, whose results have a row per direction, computed in blocks of directions."""
        of_block = lambda directions, *rows: f(project(self.features, directions[0]) * self.scale, *rows)
        return by_rows(of_block, self.directions[None], *rows, size=attention_kernels.row_block())

    def by_token(self, f: Callable[..., Any], *tokens: Array) -> Any:
        """Returns `f(z, *tokens)`, whose results have a row per token, computed in blocks of tokens."""
        of_block = lambda features, *tokens: f(project(features, self.directions) * self.scale, *tokens)
        return by_rows(of_block, self.features, *tokens, size=attention_kernels.row_block())


class Mixture(NamedTuple):
    """Weights W_kn, see the module.

    Attributes:
      logits: the z_kn.
      of_row, of_token: the a_k and c_n.
    """

    logits: Logits
    of_row: Float[Array, "b k"]
    of_token: Float[Array, "b n"]

    def by_row(self, f: Callable[..., Any]) -> Any:
        """Returns `f(W)`, whose results have a row per outgoing row."""
        weights = lambda z, of_row: jnp.exp(z + of_row[:, :, None] + self.of_token[:, None, :])
        return self.logits.by_row(lambda z, of_row: f(weights(z, of_row)), self.of_row)

    def by_token(self, f: Callable[..., Any]) -> Any:
        """Returns `f(W)`, whose results have a row per token."""
        weights = lambda z, of_token: jnp.exp(z + self.of_row[:, :, None] + of_token[:, None, :])
        return self.logits.by_token(lambda z, of_token: f(weights(z, of_token)), self.of_token)


def softmax(logits: Logits) -> Mixture:
    """Weights that sum to one over the tokens."""
    of_row = -logits.by_row(lambda z: logsumexp(z, axis=2))
    return Mixture(logits, of_row, jnp.zeros(logits.features.shape[:2]))


def mixed(tokens: Tokens, values: Float[Array, "b n d"], mixture: Mixture, step: Step) -> tuple[Tokens, StepReport]:
    """Replaces tokens with mixtures of them, with the bookkeeping of `clusters.mixed`.

    Args:
      values: the token values to mix.
    """
    sums, row_map = mixture.by_token(lambda weights: (weights.sum(1), first_min(-weights, axis=1)))
    shares = tokens.size[:, step.num_prefix_tokens :] / jnp.maximum(sums, jnp.finfo(sums.dtype).tiny)

    def one(weights):
        position = merged_position(tokens, weights, first_min(-weights, axis=2), step)
        return weights.astype(values.dtype) @ values, (weights * shares[:, None, :]).sum(2), position

    rows, sizes, position = mixture.by_row(one)
    reduced = behind_prefix(tokens, rows, sizes, position, row_map, step)
    # XLA drops the computation of the weights if a program does not return them.
    return reduced, StepReport(row_map=row_map, soft=mixture.by_row(lambda weights: weights))
