"""Keeping some of the `Tokens`, and what methods choose them by."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxprune.nn.tokens import Attended, Tokens, take
from jaxprune.reduction.parts.base import Step, StepReport
from jaxprune.reduction.parts.row_maps import compose, places


def keep_rows(tokens: Tokens, ids: Int[Array, "b k"], num_prefix_tokens: int) -> tuple[Tokens, StepReport]:
    """Keeps the rows `ids`, in that order, and drops the others."""
    row_map = places(ids, tokens.x.shape[1] - num_prefix_tokens)
    of_rows = lambda values: take(values, ids, num_prefix_tokens)
    kept = Tokens(
        x=of_rows(tokens.x),
        size=of_rows(tokens.size),
        policy=of_rows(tokens.policy),
        assign=compose(tokens.assign, row_map),
        position=of_rows(tokens.position),
    )
    return kept, StepReport(row_map=row_map, kept=ids.astype(jnp.int32))


def unchanged(tokens: Tokens, num_prefix_tokens: int) -> tuple[Tokens, StepReport]:
    """Returns the tokens unchanged, with an identity report."""
    b, n = tokens.x.shape[:2]
    rows = jnp.arange(n - num_prefix_tokens, dtype=jnp.int32)
    rows = jnp.broadcast_to(rows[None, :], (b, rows.shape[0]))
    return tokens, StepReport(row_map=rows, kept=rows)


def absent_rows(tokens: Tokens, step: Step) -> Bool[Array, "b n"] | None:
    """True for the rows that an earlier step left absent, without the prefix; None where every row is present."""
    return tokens.policy[:, step.num_prefix_tokens :] == 0 if step.has_absent else None


def best(scores: Float[Array, "b n"], num_keep: int) -> Int[Array, "b k"]:
    """Indices of the largest scores, best first; ties go to the first index.

    A stable sort, not `lax.top_k`: on a sharded batch `top_k` gathers all images on every device.
    """
    return jnp.argsort(-scores, axis=-1, stable=True)[:, :num_keep].astype(jnp.int32)


def cls_scores(attended: Attended, num_prefix_tokens: int) -> Float[Array, "b n"]:
    """Attention of the CLS token to each row, averaged over the heads."""
    return present(attended.cls_attn).mean(1)[:, num_prefix_tokens:]


def present(field: Array | None) -> Array:
    """Asserts that a field of `Attended` is present, which `needs` guarantees."""
    assert field is not None, "a reducer reads a field of Attended that its `needs` does not name"
    return field
