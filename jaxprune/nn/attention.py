"""Multi-head self-attention in parts, which computes and reports only the requested fields."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn import attention_kernels
from jaxprune.nn.linear import Linear, normal_02
from jaxprune.nn.relative_bias import table_rows
from jaxprune.nn.tokens import Attended
from jaxprune.ops import tensor_parallel
from jaxprune.ops.blocks import by_rows, rows_and_sums
from jaxprune.ops.platform import platform, takes_gradient
from jaxprune.ops.row_sums import FEWEST_ROWS, sum_of_rows


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
    logits: Float[Array, "b h m n"],
    policy: Float[Array, "b n"],
    eps: float = 1e-6,
    *,
    rows: Int[Array, "m"] | None = None,
) -> Float[Array, "b h m n"]:
    """Softmax with keys weighted by their policy, except each token's own (DynamicViT, Rao et al., 2021, eq. 10-11).

    Differentiable in the policy; a key of policy 0 keeps a weight near eps / n.

    Args:
      rows: the token that each row of the logits belongs to; by default the first tokens in order.
    """
    m, n = logits.shape[-2:]
    itself = (jnp.eye(m, n, dtype=bool) if rows is None else rows[:, None] == jnp.arange(n)[None, :])[None, None]
    counts = jnp.where(itself, 1.0, policy.astype(jnp.float32)[:, None, None, :])
    weights = jnp.exp(logits - logits.max(-1, keepdims=True)) * counts
    return (weights + eps / n) / (weights.sum(-1, keepdims=True) + eps)


def weigh(weights: Float[Array, "b h m n"], v: Float[Array, "b h n d"]) -> Float[Array, "b h m d"]:
    """The attention-weighted sum of the values."""
    b, h, m, n = weights.shape
    d = v.shape[-1]
    out = weights.astype(v.dtype).reshape(b * h, m, n) @ v.reshape(b * h, n, d)
    return out.reshape(b, h, m, d)


def attend(
    q: Float[Array, "b h m d"],
    k: Float[Array, "b h n d"],
    v: Float[Array, "b h n e"],
    bias: Float[Array, "#b #h #m n"] | None = None,
) -> Float[Array, "b h m e"]:
    """Attention of the queries to all keys, by the implementation that `nn.attention_kernels` chooses.

    Args:
      bias: added to the scaled dot products (log size of merged tokens, float32's lowest finite number for absent
        keys).
    """
    kind = attention_kernels.chosen(q.dtype, q.shape[2], k.shape[2])
    if kind not in ("plain", "blocked"):
        out = attention_kernels.flash(kind, q, k, v, bias)
        if out is not None:
            return out
    if kind != "plain":
        each_row, shared = _by_query(bias, q.shape[2])
        # Queries first, along with per-query biases, which are split into the same blocks.
        of_block = lambda q, *of_rows: _attend(q, k, v, of_rows[0] if of_rows else shared, jnp.float32)
        return by_rows(of_block, q, *each_row, axis=2, size=attention_kernels.BLOCK)
    if platform() == "cpu":
        return _attend(q, k, v, bias)
    width = v.shape[-1]
    if width < q.shape[-1]:
        # Queries and keys may have columns for positions; jax.nn wants values as wide.
        v = jnp.pad(v, ((0, 0), (0, 0), (0, 0), (0, q.shape[-1] - width)))
    return _swap(jax.nn.dot_product_attention(_swap(q), _swap(k), _swap(v), bias=bias))[..., :width]


def _attend(q: Array, k: Array, v: Array, bias: Array | None, sums: Any = None) -> Array:
    """Attention by plain products; `sums` is the dtype of their results, by default that of their operands."""
    scores, total = _scores(q, k, bias, sums)
    return _gather(scores, total, v, sums)


def _ordered_logits(q: Array, k: Array, bias: Array | None) -> Float[Array, "b h m n"]:
    """`attention_logits` in the order of axes of `jax.nn.dot_product_attention`.

    By the compiler's estimate for a TPU v5e, another order beside it copies q, k and v (docs/results.md).
    """
    logits = jnp.einsum("bmhd,bnhd->bhmn", _swap(q), _swap(k), preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    return logits if bias is None else logits + bias


def _first_weights(
    q: Float[Array, "b h m d"], k: Float[Array, "b h n d"], bias: Float[Array, "#b #h 1 n"] | None
) -> Float[Array, "b h n"]:
    """The attention weights of the first query."""
    if platform() != "tpu":
        return attention_weights(q[:, :, :1], k, bias)[:, :, 0]
    # A single row would be summed without the matrix unit, from another order of the keys.
    return jax.nn.softmax(_ordered_logits(q[:, :, :FEWEST_ROWS], k, bias)[:, :, 0], axis=-1)


def _swap(x: Float[Array, "b h n d"]) -> Float[Array, "b n h d"]:
    """Swaps heads and tokens: the order of `jax.nn`."""
    return jnp.swapaxes(x, 1, 2)


def _attend_and_receive(
    q: Array, k: Array, v: Array, bias: Array | None, policy: Float[Array, "b n"] | None
) -> tuple[Float[Array, "b h m d"], Float[Array, "b h n"]]:
    """Attention by plain products, and the attention that each key receives from the queries of policy 1."""
    if platform() == "tpu":
        return _attend_and_receive_by_products(q, k, v, bias, policy)
    if platform() != "cpu":
        weights = jax.nn.softmax(_ordered_logits(q, k, bias), axis=-1)
        out = _swap(jnp.einsum("bhmn,bnhd->bmhd", weights.astype(v.dtype), _swap(v)))
        return out, _received(weights, policy)
    b, h = q.shape[:2]
    scores, total = _scores(q, k, bias)
    share = 1 / total if policy is None else jnp.repeat(policy, h, axis=0)[:, :, None] / total
    # Without normalising the matrix first, which takes another pass over it (measured: 1 % of a ViT-S under K-Medoids).
    received = jax.lax.dot_general(share, scores, (((1,), (1,)), ((0,), (0,))), precision=jax.lax.Precision.HIGHEST)
    return _gather(scores, total, v), received.reshape(b, h, -1)


def _attend_and_receive_by_products(
    q: Array, k: Array, v: Array, bias: Array | None, policy: Float[Array, "b n"] | None
) -> tuple[Float[Array, "b h m d"], Float[Array, "b h n"]]:
    """`_attend_and_receive` for TPUs: sums over queries by the matrix unit, of weights as they are for the values."""
    b, h, m, _ = q.shape
    weights = jax.nn.softmax(_ordered_logits(q, k, bias), axis=-1).astype(v.dtype)
    out = _swap(jnp.einsum("bhmn,bnhd->bmhd", weights, _swap(v)))
    counted = jnp.ones((b, m)) if policy is None else policy
    return out, sum_of_rows(weights, jnp.broadcast_to(counted[:, None, :], (b, h, m)))


def _received(weights: Float[Array, "b h m n"], policy: Float[Array, "b m"] | None) -> Float[Array, "b h n"]:
    """The attention that each key receives from the queries of policy 1."""
    return (weights if policy is None else weights * policy[:, None, :, None]).sum(2)


def _scores(q: Array, k: Array, bias: Array | None, sums: Any = None) -> tuple[Array, Array]:
    """Exponentials of the attention logits, shape (b·h, m, n), and their sums over the keys.

    The results of attention are divided by the sums, instead of this matrix, which saves one pass over it and two in
    the backward pass (measured: a tenth of an MAE step).
    """
    b, h, m, d = q.shape
    n = k.shape[2]
    # One batch axis: XLA's CPU backend has a fast batched product for 3-d operands.
    q, k = q.reshape(b * h, m, d) * d**-0.5, k.reshape(b * h, n, d)
    logits = jax.lax.dot_general(q, k, (((2,), (2,)), ((0,), (0,))), preferred_element_type=sums).astype(jnp.float32)
    if bias is not None:
        logits = logits + jnp.broadcast_to(bias, (b, h, *bias.shape[2:])).reshape(b * h, -1, n)
    scores = jnp.exp(logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True)))
    return scores, scores.sum(-1, keepdims=True)


def _gather(scores: Array, total: Array, v: Array, sums: Any = None) -> Array:
    """The values, summed with the weights `scores / total`."""
    b, h, n, d = v.shape
    product = (((2,), (1,)), ((0,), (0,)))
    out = jax.lax.dot_general(scores.astype(v.dtype), v.reshape(b * h, n, d), product, preferred_element_type=sums)
    return (out / total).astype(v.dtype).reshape(b, h, -1, d)


def _by_query(bias: Array | None, queries: int) -> tuple[tuple[Array, ...], Array | None]:
    """Splits the bias into (part with a row per query, part shared by all queries)."""
    if bias is None or bias.shape[2] == 1:
        return (), bias
    return (jnp.broadcast_to(bias, (*bias.shape[:2], queries, bias.shape[3])),), None


class Attention(nnx.Module):
    """The projections of a ViT's self-attention: one fused q|k|v, and the output (Vaswani et al., 2017).

    Args:
      qkv_bias: False, True, or "qv" for queries and values only (BEiT, EVA).
      proj_bias: whether the output projection has a bias.
      qk_norm: builds the norms of queries and of keys, given their width; None leaves them out.
      norm: builds the norm before the output projection, given its width (EVA-02-CLIP, BEiT-3); None leaves it out.
      relative_grid: the patch grid of learned relative position biases (`relative_bias`); None leaves them out.
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
        """Queries, keys and values of every head, without rotary embedding."""
        b, n, d = x.shape
        if (platform() == "tpu" and takes_gradient()) or tensor_parallel.splits(self.num_heads):
            q, k, v = self._by_part(x)
        else:
            qkv, bias = self.qkv(x), self._bias_of_queries_and_values(d)
            qkv = qkv if bias is None else qkv + bias.astype(qkv.dtype)[None, None]
            q, k, v = qkv.reshape(b, n, 3, self.num_heads, d // self.num_heads).transpose(2, 0, 3, 1, 4)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return Heads(q, k, v)

    def _by_part(self, x: Float[Array, "b n d"]) -> list[Float[Array, "b h n e"]]:
        """Queries, keys and values by a product each; where heads are split over devices, every head is on one.

        By the compiler's estimate for a TPU v5e, training copies the parts of one product into the layouts that
        attention and its gradient read (docs/results.md); inference does not.
        """
        d, heads = x.shape[-1], self.num_heads
        dtype = self.qkv.dtype or x.dtype
        kernel = self.qkv.kernel[...].reshape(d, 3, heads, -1)
        if tensor_parallel.splits(heads):
            kernel = tensor_parallel.by_head(kernel, axis=2)
        parts = [jnp.einsum("bnd,dhe->bhne", x.astype(dtype), kernel[:, part].astype(dtype)) for part in range(3)]
        bias = self._bias_of_queries_and_values(d) if self.qkv.bias is None else self.qkv.bias[...]
        if bias is None:
            return parts
        return [part + added for part, added in zip(parts, bias.reshape(3, 1, heads, 1, -1).astype(dtype), strict=True)]

    def _bias_of_queries_and_values(self, width: int) -> Float[Array, "n"] | None:
        if self.q_bias is None or self.v_bias is None:
            return None
        return jnp.concatenate([self.q_bias[...], jnp.zeros((width,)), self.v_bias[...]])

    def values(self, x: Float[Array, "b n d"]) -> Float[Array, "b h n e"]:
        """The values of every head, without queries and keys."""
        v = self.qkv.part(x, columns=slice(2 * x.shape[-1], None))
        if self.v_bias is not None:
            v = v + self.v_bias[...].astype(v.dtype)[None, None]
        return split_heads(v, self.num_heads)

    def output(self, gathered: Float[Array, "b m d"]) -> Float[Array, "b m d"]:
        """Applies the norm, if any, and the output projection to the concatenated heads."""
        return self.proj(gathered if self.norm is None else self.norm(gathered))


def self_attention(
    heads: Heads,
    *,
    bias: Float[Array, "#b #h #m n"] | None = None,
    policy: Float[Array, "b n"] | None = None,
    soft_policy: bool = False,
    needs: frozenset[str] = frozenset(),
    num_prefix_tokens: int = 1,
) -> tuple[Float[Array, "b m d"], Attended]:
    """Returns the attention output, heads concatenated, and the fields of `Attended` named in `needs`.

    Args:
      bias: added to the logits (log size of merged tokens).
      policy: 0 masks a token as a key; None masks none.
      soft_policy: mask with `policy_softmax`, which is differentiable.
      num_prefix_tokens: tokens in front, of which the first ranks the others (`Attended.cls_attn`); 0 without a class
        token, also where registers are in front.
    """
    q, k, v = heads
    soft = None
    if soft_policy:
        soft = jnp.ones((q.shape[0], q.shape[2])) if policy is None else policy
    else:
        bias = key_mask_bias(bias, policy)
    if soft is None and not reads_all_rows(needs, num_prefix_tokens):
        return merge_heads(attend(q, k, v, bias)), observe(heads, bias, policy, needs, num_prefix_tokens)
    plain = attention_kernels.chosen(q.dtype, q.shape[2], k.shape[2]) == "plain"
    if plain and soft is not None:
        weights = _weights(q, k, bias, soft)
        out, attended = weigh(weights, v), observe(heads, bias, policy, needs, num_prefix_tokens, soft, weights=weights)
    else:
        out, received = _attend_and_receive(q, k, v, bias, policy) if plain else _in_blocks(heads, bias, policy, soft)
        attended = observe(heads, bias, policy, needs, num_prefix_tokens, soft, received=received)
    return merge_heads(out), attended


def _weights(
    q: Array, k: Array, bias: Array | None, soft: Float[Array, "b n"] | None, rows: Int[Array, "m"] | None = None
) -> Float[Array, "b h m n"]:
    """Attention weights, with `policy_softmax` if there is a soft policy."""
    logits = attention_logits(q, k, bias)
    return jax.nn.softmax(logits, axis=-1) if soft is None else policy_softmax(logits, soft, rows=rows)


def _in_blocks(
    heads: Heads, bias: Array | None, policy: Float[Array, "b n"] | None, soft: Float[Array, "b n"] | None
) -> tuple[Float[Array, "b h n d"], Float[Array, "b h n"]]:
    """The attention output, and the attention that each key receives, without the matrix of weights."""
    q, k, v = heads
    b, _, n, _ = q.shape
    counts = (jnp.ones((b, n)) if policy is None else policy.astype(jnp.float32))[:, None, :, None]
    number = jnp.arange(n, dtype=jnp.int32)[None, None, :, None]
    each_row, shared = _by_query(bias, n)

    def one(q, counts, number, *of_rows):
        weights = _weights(q, k, of_rows[0] if of_rows else shared, soft, number[0, 0, :, 0])
        return weigh(weights, v), (weights * counts).sum(2)

    return rows_and_sums(one, q, counts, number, *each_row, axis=2, size=attention_kernels.BLOCK)


def split_heads(x: Float[Array, "b n d"], num_heads: int) -> Float[Array, "b h n e"]:
    """Divides the channels among the heads; `merge_heads` concatenates them again."""
    b, n, d = x.shape
    return x.reshape(b, n, num_heads, d // num_heads).swapaxes(1, 2)


def merge_heads(out: Float[Array, "b h m e"]) -> Float[Array, "b m d"]:
    """Concatenates the heads."""
    b, h, m, e = out.shape
    return out.transpose(0, 2, 1, 3).reshape(b, m, h * e)


def key_mask_bias(
    bias: Float[Array, "#b #h #m n"] | None, policy: Float[Array, "b n"] | None
) -> Float[Array, "#b #h #m n"] | None:
    """Adds to `bias` a mask of the keys of policy 0: the lowest finite number."""
    if policy is None:
        return bias
    mask = jnp.where(policy > 0, 0.0, jnp.finfo(jnp.float32).min)[:, None, None, :]
    return mask if bias is None else bias + mask


def observe(
    heads: Heads,
    bias: Float[Array, "#b #h #m n"] | None,
    policy: Float[Array, "b n"] | None,
    needs: frozenset[str],
    num_prefix_tokens: int,
    soft: Float[Array, "b n"] | None = None,
    *,
    weights: Float[Array, "b h n n"] | None = None,
    received: Float[Array, "b h n"] | None = None,
) -> Attended:
    """Returns the fields of `Attended` named in `needs`, from `weights` or `received`, if already computed.

    Args:
      num_prefix_tokens: see `self_attention`.
      soft: the policy of `policy_softmax`; None for the plain softmax.
    """
    q, k, v = heads
    all_rows = reads_all_rows(needs, num_prefix_tokens)
    if all_rows and weights is None and received is None:
        if attention_kernels.chosen(q.dtype, q.shape[2], k.shape[2]) == "plain":
            weights = _weights(q, k, bias, soft)
        else:
            _, received = _in_blocks(heads, bias, policy, soft)
    fields = {"keys": k, "values": v}
    if received is not None:
        fields["received"] = received
    elif all_rows and weights is not None:
        fields["received"] = _received(weights, policy)
    if "cls_attn" in needs and num_prefix_tokens == 0:
        queries = q.shape[2] if policy is None else policy.sum(1)[:, None, None]
        fields["cls_attn"] = fields["received"] / queries
    elif "cls_attn" in needs:
        # A ranking by CLS attention only costs one extra row.
        first = bias if bias is None else bias[:, :, :1]
        if weights is not None:
            fields["cls_attn"] = weights[:, :, 0]
        elif soft is None:
            fields["cls_attn"] = _first_weights(q, k, first)
        else:
            fields["cls_attn"] = _weights(q[:, :, :1], k, first, soft)[:, :, 0]
    return Attended(**{name: fields[name] for name in needs})


def reads_all_rows(needs: frozenset[str], num_cls_tokens: int) -> bool:
    """Whether fields of `Attended` are read off the attention of all tokens, and not of the CLS token alone."""
    return "received" in needs or ("cls_attn" in needs and num_cls_tokens == 0)
