"""Attention between a set of latents and the map of a ConvNet, and within the latents (Dynamic Perceiver)."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.nn.attention import attention_weights, merge_heads, split_heads, weigh
from jaxprune.nn.linear import Linear, normal_02
from jaxprune.nn.mlp import ACTIVATIONS
from jaxprune.nn.norm import LayerNorm

_EPS = 1e-5


class _Attention(nnx.Module):
    """Queries, keys and values of the same width, without biases; learned keys' offsets if the positions are fixed."""

    def __init__(self, dim: int, read: int, width: int, heads: int, *, positions: int = 0, **common: Any):
        plain = {"use_bias": False, **common}
        self.q_proj, self.k_proj = Linear(dim, width, **plain), Linear(read, width, **plain)
        self.v_proj, self.o_proj = Linear(read, width, **plain), Linear(width, dim, **common)
        self.heads = heads
        self.relative_position_bias = nnx.data(
            nnx.Param(jnp.zeros((1, positions, width), jnp.float32)) if positions else None
        )

    def __call__(self, x: Float[Array, "b m d"], source: Float[Array, "b n e"]) -> Float[Array, "b m d"]:
        keys = self.k_proj(source)
        if self.relative_position_bias is not None:
            keys = keys + self.relative_position_bias[...].astype(keys.dtype)
        q, k, v = (split_heads(rows, self.heads) for rows in (self.q_proj(x), keys, self.v_proj(source)))
        return self.o_proj(merge_heads(weigh(attention_weights(q, k), v)))


class _Mlp(nnx.Module):
    def __init__(self, dim: int, factor: int, **common: Any):
        self.layernorm = LayerNorm(dim, eps=_EPS)
        self.fc1, self.fc2 = Linear(dim, factor * dim, **common), Linear(factor * dim, dim, **common)

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        return self.fc2(ACTIVATIONS["gelu"](self.fc1(self.layernorm(x))))


class _CrossAttend(nnx.Module):
    def __init__(self, dim: int, read: int, width: int, positions: int, **common: Any):
        self.q_norm, self.kv_norm = LayerNorm(dim, eps=_EPS), LayerNorm(read, eps=_EPS)
        self.attention = _Attention(dim, read, width, 1, positions=positions, **common)


class CrossAttention(nnx.Module):
    """Rows read other rows by one head, then an MLP; pre-norm, with residuals.

    Args:
      dim, read: widths of the rows and of what they read.
      width: of queries, keys and values.
      positions: number of rows that are read, if each has learned offsets of its key.
    """

    def __init__(
        self,
        dim: int,
        read: int,
        width: int,
        *,
        positions: int = 0,
        kernel_init: Any = normal_02,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        common = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.cross_attn = _CrossAttend(dim, read, width, positions, **common)
        self.mlp = _Mlp(dim, 1, **common)

    def __call__(self, x: Float[Array, "b m d"], source: Float[Array, "b n e"]) -> Float[Array, "b m d"]:
        part = self.cross_attn
        x = x + part.attention(part.q_norm(x), part.kv_norm(source))
        return x + self.mlp(x)


class _SelfAttend(nnx.Module):
    def __init__(self, dim: int, heads: int, **common: Any):
        self.norm = LayerNorm(dim, eps=_EPS)
        self.attention = _Attention(dim, dim, dim, heads, **common)


class SelfAttention(nnx.Module):
    """Self-attention of the latents, then an MLP; pre-norm, with residuals."""

    def __init__(
        self, dim: int, heads: int, factor: int, *, kernel_init: Any = normal_02, dtype: Any = None, rngs: nnx.Rngs
    ):
        common = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.self_attn = _SelfAttend(dim, heads, **common)
        self.mlp = _Mlp(dim, factor, **common)

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        normed = self.self_attn.norm(x)
        x = x + self.self_attn.attention(normed, normed)
        return x + self.mlp(x)
