"""The decoder of SegViT (Zhang et al., 2022): class queries attend to tokens, and their scores are the masks."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.nn import LayerNorm, Linear
from jaxprune.nn.attention import attention_logits, merge_heads, split_heads
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.dropout import apply_dropout
from jaxprune.nn.linear import xavier_uniform
from jaxprune.nn.optional_key import fold_in, split_key

EPS = 1e-5


class _SelfAttention(nnx.Module):
    """Attention between the queries; one layer gives queries, keys and values."""

    def __init__(self, dim: int, num_heads: int, dropout: float, *, dtype: Any = None, rngs: nnx.Rngs):
        self.qkv = Linear(dim, 3 * dim, kernel_init=xavier_uniform, dtype=dtype, rngs=rngs)
        self.proj = Linear(dim, dim, kernel_init=xavier_uniform, dtype=dtype, rngs=rngs)
        self.num_heads, self.dropout = num_heads, dropout

    def __call__(self, x: Float[Array, "b m d"], key: PRNGKeyArray | None = None) -> Float[Array, "b m d"]:
        q, k, v = (split_heads(part, self.num_heads) for part in jnp.split(self.qkv(x), 3, axis=-1))
        return self.proj(_gather(attention_logits(q, k), v, self.dropout, key))


class _CrossAttention(nnx.Module):
    """Attention of queries to tokens."""

    def __init__(self, dim: int, num_heads: int, dropout: float, *, dtype: Any = None, rngs: nnx.Rngs):
        layer = lambda: Linear(dim, dim, kernel_init=xavier_uniform, dtype=dtype, rngs=rngs)
        self.q, self.k, self.v, self.proj = layer(), layer(), layer(), layer()
        self.num_heads, self.dropout = num_heads, dropout

    def __call__(
        self,
        queries: Float[Array, "b m d"],
        tokens: Float[Array, "b n d"],
        present: Bool[Array, "b n"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "b m d"], Float[Array, "b m n"]]:
        """Returns the output, and the scaled scores before the softmax, averaged over the heads."""
        split = lambda x: split_heads(x, self.num_heads)
        logits = attention_logits(split(self.q(queries)), split(self.k(tokens)))
        lowest = jnp.finfo(logits.dtype).min
        masked = logits if present is None else jnp.where(present[:, None, None, :], logits, lowest)
        return self.proj(_gather(masked, split(self.v(tokens)), self.dropout, key)), logits.mean(1)


def _gather(logits: Array, values: Array, dropout: float, key: PRNGKeyArray | None) -> Array:
    weights = apply_dropout(jax.nn.softmax(logits, axis=-1), dropout, key)
    return merge_heads(jnp.einsum("bhmn,bhne->bhme", weights.astype(values.dtype), values))


class _DecoderLayer(nnx.Module):
    """Self-attention of the queries, attention to the tokens, an MLP with ReLU; the norms come after the sums."""

    def __init__(
        self, dim: int, num_heads: int, dropout: float, *, mlp_ratio: float = 4.0, dtype: Any = None, rngs: nnx.Rngs
    ):
        common: Any = {"dtype": dtype, "rngs": rngs}
        self.self_attn = _SelfAttention(dim, num_heads, dropout, **common)
        self.cross_attn = _CrossAttention(dim, num_heads, dropout, **common)
        self.fc1 = Linear(dim, int(dim * mlp_ratio), kernel_init=xavier_uniform, **common)
        self.fc2 = Linear(int(dim * mlp_ratio), dim, kernel_init=xavier_uniform, **common)
        self.norm1, self.norm2, self.norm3 = (LayerNorm(dim, eps=EPS) for _ in range(3))
        self.dropout = dropout

    def __call__(
        self,
        queries: Float[Array, "b m d"],
        tokens: Float[Array, "b n d"],
        present: Bool[Array, "b n"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "b m d"], Float[Array, "b m n"]]:
        weights, cross_weights, hidden, *branches = split_key(key, 6)
        queries = self.norm1(queries + apply_dropout(self.self_attn(queries, weights), self.dropout, branches[0]))
        gathered, scores = self.cross_attn(queries, tokens, present, cross_weights)
        queries = self.norm2(queries + apply_dropout(gathered, self.dropout, branches[1]))
        mixed = self.fc2(apply_dropout(jax.nn.relu(self.fc1(queries)), self.dropout, hidden))
        return self.norm3(queries + apply_dropout(mixed, self.dropout, branches[2])), scores


def _layer_flops(layer: _DecoderLayer, queries: int, tokens: int) -> int:
    """Multiply-accumulates of a layer."""
    itself, cross, width = layer.self_attn, layer.cross_attn, layer.fc1.kernel.shape[0]
    of_queries = (itself.qkv, itself.proj, cross.q, cross.proj, layer.fc1, layer.fc2)
    pairs = 2 * width * queries * (queries + tokens)
    return sum(linear_flops(part, queries) for part in of_queries) + 2 * linear_flops(cross.k, tokens) + pairs


class MaskDecoder(nnx.Module):
    """Attention to mask: layers in which queries attend to projected tokens; the last one's scores are mask logits.

    Args:
      in_features: width of the tokens.
      dim: width of the queries.
      dropout: of attention weights, hidden values of the MLPs and what each branch adds, in training.
    """

    def __init__(
        self,
        in_features: int,
        dim: int,
        num_heads: int,
        num_layers: int,
        dropout: float = 0.1,
        *,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        if num_heads < 1 or dim % num_heads:
            raise UserError(f"features={dim} is not divisible by head_heads={num_heads}: change one of them.")
        if num_layers < 1:
            raise UserError(f"layers={num_layers}: a decoder has one layer or more.")
        self.input_proj = Linear(in_features, dim, dtype=dtype, rngs=rngs)
        self.proj_norm = LayerNorm(dim, eps=EPS)
        sizes = (dim, num_heads, dropout)
        self.layers = nnx.List([_DecoderLayer(*sizes, dtype=dtype, rngs=rngs) for _ in range(num_layers)])

    def flops(self, queries: int, tokens: int) -> int:
        """Multiply-accumulates for that many queries and tokens of an image."""
        return linear_flops(self.input_proj, tokens) + sum(_layer_flops(part, queries, tokens) for part in self.layers)

    def __call__(
        self,
        queries: Float[Array, "b m d"],
        tokens: Float[Array, "b n i"],
        present: Bool[Array, "b n"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "b m d"], Float[Array, "b m n"]]:
        """Returns the new queries and the mask logits of each, before the sigmoid.

        Args:
          present: tokens to attend to; None means all.
          key: for dropout; None in evaluation.
        """
        x = self.proj_norm(self.input_proj(tokens))
        scores = jnp.zeros(())
        for number, layer in enumerate(self.layers):
            queries, scores = layer(queries, x, present, fold_in(key, number))
        return queries, scores
