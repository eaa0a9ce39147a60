"""The decoder of SegViT (Zhang et al., 2022): class queries attend to tokens, and their scores are the masks."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxprune.nn import LayerNorm, Linear
from jaxprune.nn.attention import attention_logits, merge_heads
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.linear import xavier_uniform

EPS = 1e-5


class _SelfAttention(nnx.Module):
    """Attention between the queries; one layer gives queries, keys and values."""

    def __init__(self, dim: int, num_heads: int, *, dtype: Any = None, rngs: nnx.Rngs):
        self.qkv = Linear(dim, 3 * dim, kernel_init=xavier_uniform, dtype=dtype, rngs=rngs)
        self.proj = Linear(dim, dim, kernel_init=xavier_uniform, dtype=dtype, rngs=rngs)
        self.num_heads = num_heads

    def __call__(self, x: Float[Array, "b m d"]) -> Float[Array, "b m d"]:
        q, k, v = (_heads(part, self.num_heads) for part in jnp.split(self.qkv(x), 3, axis=-1))
        return self.proj(_gather(attention_logits(q, k), v))


class _CrossAttention(nnx.Module):
    """Attention of queries to tokens."""

    def __init__(self, dim: int, num_heads: int, *, dtype: Any = None, rngs: nnx.Rngs):
        layer = lambda: Linear(dim, dim, kernel_init=xavier_uniform, dtype=dtype, rngs=rngs)
        self.q, self.k, self.v, self.proj = layer(), layer(), layer(), layer()
        self.num_heads = num_heads

    def __call__(
        self, queries: Float[Array, "b m d"], tokens: Float[Array, "b n d"], present: Bool[Array, "b n"] | None = None
    ) -> tuple[Float[Array, "b m d"], Float[Array, "b m n"]]:
        """Returns the output, and the scaled scores before the softmax, averaged over the heads."""
        split = lambda x: _heads(x, self.num_heads)
        logits = attention_logits(split(self.q(queries)), split(self.k(tokens)))
        lowest = jnp.finfo(logits.dtype).min
        masked = logits if present is None else jnp.where(present[:, None, None, :], logits, lowest)
        return self.proj(_gather(masked, split(self.v(tokens)))), logits.mean(1)


def _heads(x: Array, num_heads: int) -> Array:
    b, n, d = x.shape
    return x.reshape(b, n, num_heads, d // num_heads).transpose(0, 2, 1, 3)


def _gather(logits: Array, values: Array) -> Array:
    return merge_heads(jnp.einsum("bhmn,bhne->bhme", jax.nn.softmax(logits, axis=-1).astype(values.dtype), values))


class _DecoderLayer(nnx.Module):
    """Self-attention of the queries, attention to the tokens, an MLP with ReLU; the norms come after the sums."""

    def __init__(self, dim: int, num_heads: int, *, mlp_ratio: float = 4.0, dtype: Any = None, rngs: nnx.Rngs):
        common: Any = {"dtype": dtype, "rngs": rngs}
        self.self_attn = _SelfAttention(dim, num_heads, **common)
        self.cross_attn = _CrossAttention(dim, num_heads, **common)
        self.fc1 = Linear(dim, int(dim * mlp_ratio), kernel_init=xavier_uniform, **common)
        self.fc2 = Linear(int(dim * mlp_ratio), dim, kernel_init=xavier_uniform, **common)
        self.norm1, self.norm2, self.norm3 = (LayerNorm(dim, eps=EPS) for _ in range(3))

    def __call__(
        self, queries: Float[Array, "b m d"], tokens: Float[Array, "b n d"], present: Bool[Array, "b n"] | None = None
    ) -> tuple[Float[Array, "b m d"], Float[Array, "b m n"]]:
        queries = self.norm1(queries + self.self_attn(queries))
        gathered, scores = self.cross_attn(queries, tokens, present)
        queries = self.norm2(queries + gathered)
        return self.norm3(queries + self.fc2(jax.nn.relu(self.fc1(queries)))), scores


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
    """

    def __init__(
        self, in_features: int, dim: int, num_heads: int, num_layers: int, *, dtype: Any = None, rngs: nnx.Rngs
    ):
        self.input_proj = Linear(in_features, dim, dtype=dtype, rngs=rngs)
        self.proj_norm = LayerNorm(dim, eps=EPS)
        self.layers = nnx.List([_DecoderLayer(dim, num_heads, dtype=dtype, rngs=rngs) for _ in range(num_layers)])

    def flops(self, queries: int, tokens: int) -> int:
        """Multiply-accumulates for so many queries and tokens of an image."""
        return linear_flops(self.input_proj, tokens) + sum(_layer_flops(part, queries, tokens) for part in self.layers)

    def __call__(
        self, queries: Float[Array, "b m d"], tokens: Float[Array, "b n i"], present: Bool[Array, "b n"] | None = None
    ) -> tuple[Float[Array, "b m d"], Float[Array, "b m n"]]:
        """Returns the new queries and the mask logits of each, before the sigmoid.

        Args:
          present: tokens to attend to; None means all.
        """
        x = self.proj_norm(self.input_proj(tokens))
        scores = jnp.zeros(())
        for layer in self.layers:
            queries, scores = layer(queries, x, present)
        return queries, scores
