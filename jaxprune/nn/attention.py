"""Multi-head self-attention that tells only what it is asked for, and computes no more."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.nn.linear import Linear, normal_02
from jaxprune.nn.tokens import Attended

NEEDS = frozenset(Attended._fields)


def attention_weights(
    q: Float[Array, "b h m d"], k: Float[Array, "b h n d"], bias: Float[Array, "b #h #m n"] | None = None
) -> Float[Array, "b h m n"]:
    """Softmax over the keys of the scaled dot products, in float32."""
    b, h, m, d = q.shape
    n = k.shape[2]
    # One batch axis: XLA's CPU backend has a fast batched product for 3-d operands.
    q, k = q.reshape(b * h, m, d) * d**-0.5, k.reshape(b * h, n, d)
    logits = jax.lax.dot_general(q, k, (((2,), (2,)), ((0,), (0,)))).astype(jnp.float32).reshape(b, h, m, n)
    return jax.nn.softmax(logits if bias is None else logits + bias, axis=-1)


def weigh(weights: Float[Array, "b h m n"], v: Float[Array, "b h n d"]) -> Float[Array, "b h m d"]:
    """The values summed with the attention weights."""
    b, h, m, n = weights.shape
    d = v.shape[-1]
    out = weights.astype(v.dtype).reshape(b * h, m, n) @ v.reshape(b * h, n, d)
    return out.reshape(b, h, m, d)


def attend(
    q: Float[Array, "b h m d"],
    k: Float[Array, "b h n d"],
    v: Float[Array, "b h n d"],
    bias: Float[Array, "b #h #m n"] | None = None,
) -> Float[Array, "b h m d"]:
    """Attention of the queries to all keys; on accelerators the matrix of weights stays inside XLA's fused kernel.

    Args:
      bias: is added to the scaled dot products (log size of merged tokens, -inf for absent keys).
    """
    if jax.default_backend() == "cpu":
        return weigh(attention_weights(q, k, bias), v)
    swap = lambda t: jnp.swapaxes(t, 1, 2)  # b h n d <-> b n h d, the order of jax.nn
    return swap(jax.nn.dot_product_attention(swap(q), swap(k), swap(v), bias=bias))


class Attention(nnx.Module):
    """Self-attention of a ViT: one fused q|k|v projection, heads, output projection (Vaswani et al., 2017)."""

    def __init__(self, dim: int, num_heads: int, *, qkv_bias=True, kernel_init=normal_02, dtype=None, rngs):
        if dim % num_heads:
            raise UserError(f"embed_dim {dim} is not divisible by num_heads {num_heads}: change one of them.")
        self.num_heads = num_heads
        self.qkv = Linear(dim, 3 * dim, use_bias=qkv_bias, kernel_init=kernel_init, dtype=dtype, rngs=rngs)
        self.proj = Linear(dim, dim, kernel_init=kernel_init, dtype=dtype, rngs=rngs)

    def project(self, x: Float[Array, "b n d"]) -> Float[Array, "3 b h n e"]:
        """Queries, keys and values of every head."""
        b, n, d = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, d // self.num_heads)
        return qkv.transpose(2, 0, 3, 1, 4)

    def merge_heads(self, out: Float[Array, "b h m e"]) -> Float[Array, "b m d"]:
        """Concatenates the heads and applies the output projection."""
        b, h, m, e = out.shape
        return self.proj(out.transpose(0, 2, 1, 3).reshape(b, m, h * e))

    def __call__(
        self,
        x: Float[Array, "b n d"],
        *,
        bias: Float[Array, "b #h #m n"] | None = None,
        needs: frozenset[str] = frozenset(),
        num_prefix_tokens: int = 1,
    ) -> tuple[Float[Array, "b n d"], Attended]:
        """Returns the attention output and the fields of `Attended` named in `needs`."""
        q, k, v = self.project(x)
        whole = "received" in needs or ("cls_attn" in needs and num_prefix_tokens == 0)
        if whole:
            weights = attention_weights(q, k, bias)
            out = weigh(weights, v)
            received = weights.sum(2)
            cls_attn = weights[:, :, 0] if num_prefix_tokens else received / x.shape[1]
        else:
            out = attend(q, k, v, bias)
            received = None
            # One extra row is all that a ranking by CLS attention costs.
            cls_attn = attention_weights(q[:, :, :1], k, bias)[:, :, 0] if "cls_attn" in needs else None
        told = Attended(cls_attn=cls_attn, received=received, keys=k, values=v)
        return self.merge_heads(out), Attended(**{name: getattr(told, name) for name in needs})
