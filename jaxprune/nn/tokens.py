"""What flows between the blocks of a transformer, and what a block can tell about its attention."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Tokens(NamedTuple):
    """The tokens of a batch and where every original patch went.

    Prefix tokens (CLS, distillation, registers) come first and are never removed. "Row" below means a row behind
    the prefix: row 0 is the first token that is not a prefix token.

    Attributes:
      x: the tokens.
      size: how many patches each token stands for; 0 = an absent token. None stands for all ones.
      policy: None where every token counts; else 1 present / 0 absent.
      assign: for each ORIGINAL patch the row that holds it; -1 = dropped.
    """

    x: Float[Array, "b n d"]
    size: Float[Array, "b n"] | None = None
    policy: Float[Array, "b n"] | None = None
    assign: Int[Array, "b p"] | None = None


class Attended(NamedTuple):
    """What one attention layer saw; only the fields that were asked for are filled.

    Attributes:
      cls_attn: attention of the CLS token to every token, after the softmax. Without any prefix token: the mean
        attention that each token received.
      received: attention received by each key, summed over the queries.
      keys: the keys.
      values: the values.
    """

    cls_attn: Float[Array, "b h n"] | None = None
    received: Float[Array, "b h n"] | None = None
    keys: Float[Array, "b h n d"] | None = None
    values: Float[Array, "b h n d"] | None = None


def all_present(x: Float[Array, "b n d"], num_prefix_tokens: int) -> Tokens:
    """Wraps freshly embedded tokens: every patch is there, in a row of its own."""
    b, n, _ = x.shape
    p = n - num_prefix_tokens
    return Tokens(
        x=x,
        size=jnp.ones((b, n), jnp.float32),
        policy=None,
        assign=jnp.broadcast_to(jnp.arange(p, dtype=jnp.int32)[None, :], (b, p)),
    )


def take(values: Array, ids: Int[Array, "b k"], num_prefix_tokens: int) -> Array:
    """Takes rows `ids` (behind the prefix) of `values` (b, n, …), the prefix in front; row 0 for an id of -1."""
    prefix, rows = values[:, :num_prefix_tokens], values[:, num_prefix_tokens:]
    return jnp.concatenate([prefix, jax.vmap(lambda r, i: r[i])(rows, jnp.maximum(ids, 0))], axis=1)
