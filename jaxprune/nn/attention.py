"""Multi-head self-attention as parts, which reports only what it is asked for, and computes no more."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.nn.linear import Linear, normal_02
from jaxprune.nn.relative_bias import table_rows
from jaxprune.nn.tokens import Attended


class Heads(NamedTuple):
    """Queries, keys and values of every head."""

    q: Float[Array, "b h m e"]
    k: Float[Array, "b h n e"]
    v: Float[Array, "b h n e"]


def attention_logits(
    q: Float[Array, "b h m d"], k: Float[Array, "b h n d"], bias: Float[Array, "#b #h #m n"] | None = None
) -> Float[Array, "b h m n"]:
    """Scaled dot products, plus `bias`, in float32."""
    b, h, m, d = q.shape
    n = k.shape[2]
    # One batch axis: XLA's CPU backend has a fast batched product for 3-d operands.
    q, k = q.reshape(b * h, m, d) * d**-0.5, k.reshape(b * h, n, d)
    logits = jax.lax.dot_general(q, k, (((2,), (2,)), ((0,), (0,)))).astype(jnp.float32).reshape(b, h, m, n)
    return logits if bias is None else logits + bias


def attention_weights(
    q: Float[Array, "b h m d"], k: Float[Array, "b h n d"], bias: Float[Array, "#b #h #m n"] | None = None
) -> Float[Array, "b h m n"]:
    """Softmax over the keys of the scaled dot products, in float32."""
    return jax.nn.softmax(attention_logits(q, k, bias), axis=-1)


def policy_softmax(
    logits: Float[Array, "b h m n"], policy: Float[Array, "b n"], eps: float = 1e-6
) -> Float[Array, "b h m n"]:
    """Softmax that counts each key by its policy, and every token for itself (DynamicViT, Rao et al., 2021, eq. 10-11).

    Row i of the logits belongs to token i. Differentiable in the policy; a key of policy 0 keeps a weight near eps / n.
    """
    m, n = logits.shape[-2:]
    itself = jnp.eye(m, n, dtype=bool)[None, None]
    counts = jnp.where(itself, 1.0, policy.astype(jnp.float32)[:, None, None, :])
    weights = jnp.exp(logits - logits.max(-1, keepdims=True)) * counts
    return (weights + eps / n) / (weights.sum(-1, keepdims=True) + eps)


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
    bias: Float[Array, "#b #h #m n"] | None = None,
) -> Float[Array, "b h m d"]:
    """Attention of the queries to all keys; on accelerators the matrix of weights stays inside XLA's fused kernel.

    Args:
      bias: is added to the scaled dot products (log size of merged tokens, -inf for absent keys).
    """
    if jax.default_backend() == "cpu":
        return _attend_on_cpu(q, k, v, bias)
    swap = lambda t: jnp.swapaxes(t, 1, 2)  # b h n d <-> b n h d, the order of jax.nn
    return swap(jax.nn.dot_product_attention(swap(q), swap(k), swap(v), bias=bias))


def _attend_on_cpu(q: Array, k: Array, v: Array, bias: Array | None) -> Array:
    b, h, m, d = q.shape
    n = k.shape[2]
    # One batch axis throughout, and the division on the result and not on the matrix: it saves a pass over the matrix,
    # and two of the backward pass (measured: a tenth of an MAE step).
    q, k, v = q.reshape(b * h, m, d) * d**-0.5, k.reshape(b * h, n, d), v.reshape(b * h, n, d)
    logits = jax.lax.dot_general(q, k, (((2,), (2,)), ((0,), (0,)))).astype(jnp.float32)
    if bias is not None:
        logits = logits + jnp.broadcast_to(bias, (b, h, *bias.shape[2:])).reshape(b * h, -1, n)
    scores = jnp.exp(logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True)))
    out = (scores.astype(v.dtype) @ v) / scores.sum(-1, keepdims=True)
    return out.astype(v.dtype).reshape(b, h, m, d)


class Attention(nnx.Module):
    """The projections of a ViT's self-attention: one fused q|k|v, and the output (Vaswani et al., 2017).

    Args:
      qkv_bias: False, True, or "qv": of queries and values only (BEiT, EVA).
      proj_bias: of the output.
      qk_norm: makes a norm for the queries, and one for the keys, from their width; None leaves them out.
      norm: makes the norm of what is gathered, from its width (EVA-02-CLIP, BEiT-3); None leaves it out.
      relative_grid: the grid between whose patches there are learned biases (`relative_bias`); None has none.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool | str = True,
        proj_bias: bool = True,
        qk_norm: Callable[[int], Any] | None = None,
        norm: Callable[[int], Any] | None = None,
        relative_grid: tuple[int, int] | None = None,
        kernel_init=normal_02,
        dtype=None,
        rngs,
    ):
        if dim % num_heads:
            raise UserError(f"embed_dim {dim} is not divisible by num_heads {num_heads}: change one of them.")
        if qkv_bias not in (True, False, "qv"):
            raise UserError(f"qkv_bias {qkv_bias!r} is neither True nor False nor 'qv'.")
        common = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        zeros = lambda *shape: nnx.Param(jnp.zeros(shape, jnp.float32))
        self.num_heads = num_heads
        self.qkv = Linear(dim, 3 * dim, use_bias=qkv_bias is True, **common)
        self.q_bias = nnx.data(zeros(dim) if qkv_bias == "qv" else None)
        self.v_bias = nnx.data(zeros(dim) if qkv_bias == "qv" else None)
        self.q_norm = nnx.data(qk_norm(dim // num_heads) if qk_norm else None)
        self.k_norm = nnx.data(qk_norm(dim // num_heads) if qk_norm else None)
        self.relative_position_bias_table = nnx.data(
            zeros(table_rows(relative_grid), num_heads) if relative_grid else None
        )
        self.norm = nnx.data(norm(dim) if norm else None)
        self.proj = Linear(dim, dim, use_bias=proj_bias, **common)

    def project(self, x: Float[Array, "b n d"]) -> Heads:
        """Queries, keys and values of every head, not rotated."""
        b, n, d = x.shape
        qkv = self.qkv(x)
        if self.q_bias is not None and self.v_bias is not None:
            bias = jnp.concatenate([self.q_bias[...], jnp.zeros((d,)), self.v_bias[...]])
            qkv = qkv + bias.astype(qkv.dtype)[None, None]
        q, k, v = qkv.reshape(b, n, 3, self.num_heads, d // self.num_heads).transpose(2, 0, 3, 1, 4)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return Heads(q, k, v)

    def output(self, gathered: Float[Array, "b m d"]) -> Float[Array, "b m d"]:
        """What tokens gathered, heads side by side, through the norm there may be and the output projection."""
        return self.proj(gathered if self.norm is None else self.norm(gathered))


def self_attention(
    heads: Heads,
    *,
    bias: Float[Array, "#b #h #m n"] | None = None,
    policy: Float[Array, "b n"] | None = None,
    soft_policy: bool = False,
    needs: frozenset[str] = frozenset(),
    num_prefix_tokens: int = 1,
) -> tuple[Float[Array, "b n d"], Attended]:
    """Returns what each token gathers, heads side by side, and the fields of `Attended` named in `needs`.

    Args:
      bias: is added to the logits (log size of merged tokens).
      policy: 0 hides a token as a key; None hides none.
      soft_policy: hides by `policy_softmax`, for a gradient.
    """
    q, k, v = heads
    if soft_policy:
        everyone = jnp.ones((q.shape[0], q.shape[2]))
        weights = policy_softmax(attention_logits(q, k, bias), everyone if policy is None else policy)
    else:
        bias = hide(bias, policy)
        weights = attention_weights(q, k, bias) if _reads_all_rows(needs, num_prefix_tokens) else None
    out = attend(q, k, v, bias) if weights is None else weigh(weights, v)
    return side_by_side(out), observe(heads, bias, policy, weights, needs, num_prefix_tokens)


def side_by_side(out: Float[Array, "b h m e"]) -> Float[Array, "b m d"]:
    """Concatenates the heads."""
    b, h, m, e = out.shape
    return out.transpose(0, 2, 1, 3).reshape(b, m, h * e)


def hide(
    bias: Float[Array, "#b #h #m n"] | None, policy: Float[Array, "b n"] | None
) -> Float[Array, "#b #h #m n"] | None:
    """Adds to `bias` what keeps every query from seeing the keys of policy 0."""
    if policy is None:
        return bias
    hidden = jnp.where(policy > 0, 0.0, jnp.finfo(jnp.float32).min)[:, None, None, :]
    return hidden if bias is None else bias + hidden


def observe(
    heads: Heads,
    bias: Float[Array, "#b #h #m n"] | None,
    policy: Float[Array, "b n"] | None,
    weights: Float[Array, "b h n n"] | None,
    needs: frozenset[str],
    num_prefix_tokens: int,
) -> Attended:
    """Returns the fields of `Attended` named in `needs`, from the whole matrix of `weights` where there is one."""
    q, k, v = heads
    if weights is None and _reads_all_rows(needs, num_prefix_tokens):
        weights = attention_weights(q, k, bias)
    seen = {"keys": k, "values": v}
    if weights is not None and (num_prefix_tokens == 0 or "received" in needs):
        counted = weights if policy is None else weights * policy[:, None, :, None]
        seen["received"] = counted.sum(2)
    if "cls_attn" in needs and num_prefix_tokens == 0:
        seen["cls_attn"] = seen["received"] / q.shape[2]
    elif "cls_attn" in needs:
        # One extra row is all that a ranking by CLS attention costs.
        first = bias if bias is None else bias[:, :, :1]
        seen["cls_attn"] = attention_weights(q[:, :, :1], k, first)[:, :, 0] if weights is None else weights[:, :, 0]
    return Attended(**{name: seen[name] for name in needs})


def _reads_all_rows(needs: frozenset[str], num_prefix_tokens: int) -> bool:
    return "received" in needs or ("cls_attn" in needs and num_prefix_tokens == 0)
