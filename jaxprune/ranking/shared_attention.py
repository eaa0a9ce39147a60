"""Attention over many sequences that each lack one token, with the shared part computed once."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.nn import Block
from jaxprune.nn.attention import attention_logits


class SharedAttention:
    r"""Attention over a sequence without each of some of its tokens.

    The output of a query with logits `l_i` to keys `i` with values `v_i` is `Σ exp(l_i) v_i / Σ exp(l_i)`. Keys in `R`
    are part of every sequence; one of the others, `V`, is missing in each. With `m = max_R l_i`, this computes once

        S = Σ_R exp(l_i - m)        A = Σ_R exp(l_i - m) v_i

    and for the sequence without `j`, with `m' = max(m, max_{V∖j} l_i)`,

        S' = S exp(m - m') + Σ_{V∖j} exp(l_i - m')        A' = A exp(m - m') + Σ_{V∖j} exp(l_i - m') v_i

    so that `A' / S'` is the attention output: softmax merged by running maximum and sums, as flash attention merges
    tiles. Nothing is subtracted from a sum, so there is no cancellation.

    Args:
      block: a decoder block.
      x: its tokens; the `staying` ones, R, followed by V.
      bias: added to the logits of each key.
    """

    def __init__(
        self, block: Block, x: Float[Array, "b n d"], staying: int, bias: Float[Array, "b 1 1 n"] | None = None
    ):
        q, k, v = block.heads(x)
        b, h, n, e = q.shape
        logits = attention_logits(q, k, bias)
        self._logits, self._values = logits[..., staying:], v[:, :, staying:]
        self._maximum = logits[..., :staying].max(-1, keepdims=True)
        weights = jnp.exp(logits[..., :staying] - self._maximum)
        self._sum = weights.sum(-1)
        self._gathered = (_flat(weights).astype(v.dtype) @ _flat(v[:, :, :staying])).reshape(b, h, n, e)

    def without(self, numbers: Int[Array, "c"]) -> Float[Array, "b c n d"]:
        """The attention output, heads concatenated, without each of the tokens `numbers` of V.

        The missing token's own row is computed too, and must be ignored by the caller.
        """
        (b, h, n, e), count = self._gathered.shape, len(numbers)
        missing = jnp.arange(self._logits.shape[-1])[None, :] == numbers[:, None]
        logits = jnp.where(missing[None, None, None], -jnp.inf, self._logits[:, :, :, None])
        maximum = jnp.maximum(logits.max(-1), self._maximum)
        weights = jnp.exp(logits - maximum[..., None])
        rescale = jnp.exp(self._maximum - maximum)
        gathered = _flat(weights).reshape(b * h, n * count, -1).astype(self._values.dtype) @ _flat(self._values)
        gathered = self._gathered[:, :, :, None] * rescale[..., None] + gathered.reshape(b, h, n, count, e)
        gathered = gathered / (self._sum[..., None] * rescale + weights.sum(-1))[..., None]
        return gathered.astype(self._values.dtype).transpose(0, 3, 2, 1, 4).reshape(b, count, n, h * e)


def _flat(heads: Array) -> Array:
    """One batch axis: XLA's CPU backend has a fast batched product for 3-d operands."""
    return heads.reshape(-1, *heads.shape[2:])
