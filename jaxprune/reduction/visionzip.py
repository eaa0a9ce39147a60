"""VisionZip: keep the attended rows and merge the others around evenly spaced ones (Yang et al., 2024)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import UserError, unknown
from jaxprune.nn import attention_kernels
from jaxprune.nn.tokens import Tokens
from jaxprune.ops.blocks import by_rows
from jaxprune.reduction.parts import clusters, cosines
from jaxprune.reduction.parts.base import Reducer, Step
from jaxprune.reduction.parts.keep_rows import absent_rows, best, cls_scores, keep_rows, present, unchanged
from jaxprune.reduction.parts.row_maps import places

MERGE = ("sum", "mean")


class VisionZip(Reducer):
    """Keeps the rows of most CLS attention in the block before, and merges the rest into contextual rows.

    The rest, in their order, provide evenly spaced targets; every other row joins the target with the most similar key,
    by the cosine of the head-averaged keys. Outgoing rows are the attended ones in their order, then the contextual
    ones; `kept` lists the targets of these. Rows that `ats` left absent come last among the rest.

    Works in networks without a CLS token too (SigLIP): there the ranking is the mean attention that a row receives.

    Args:
      contextual: number of contextual rows among those that the step keeps; by default 30 of every 220, as published.
      merge: how the rows of a target are added to it: the "sum" of the target and the mean of the others, as published,
        whose norm is up to twice that of a row; or the size-weighted "mean" of all of them, which suits later blocks.
    """

    where = "before"
    needs = frozenset({"cls_attn", "keys"})

    def __init__(self, step: Step, *, contextual: int | None = None, merge: str = "sum", rngs: nnx.Rngs | None = None):
        super().__init__(step)
        if merge not in MERGE:
            raise unknown("merge", merge, MERGE)
        if contextual is not None and not 0 <= contextual <= step.num_keep:
            raise UserError(
                f"contextual={contextual} is not among the {step.num_keep} rows that visionzip keeps at block "
                f"{step.layer}: use 0 to {step.num_keep}."
            )
        published = min(max(step.num_keep * 30 // 220, 1), step.num_keep - 1)
        self.num_contextual = published if contextual is None else contextual
        self.merge = merge
        self.drops = self.num_contextual == 0

    def flops(self) -> int:
        """For the rows that are not attended and the c contextual ones, the cosines of their keys and the means."""
        rest = self.step.tokens_in - self.step.num_keep + self.num_contextual
        return rest * self.num_contextual * (self.step.embed_dim // self.step.num_heads + self.step.embed_dim)

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, num_keep = self.step.num_prefix_tokens, self.step.num_keep
        n = tokens.x.shape[1] - prefix  # in training more rows may arrive than the plan says
        if num_keep == n:
            return unchanged(tokens, prefix)
        num_dominant = num_keep - self.num_contextual
        dominant = jnp.sort(best(cls_scores(attended, prefix), num_dominant), axis=1)
        if self.num_contextual == 0:
            return keep_rows(tokens, dominant, prefix)
        absent = absent_rows(tokens, self.step)
        rest = remaining(dominant, n, absent=absent)
        spaced = targets(n - num_dominant, self.num_contextual)
        joined = join(
            rows_of(present(attended.keys).astype(jnp.float32).mean(1)[:, prefix:], rest),
            spaced,
            absent=None if absent is None else rows_of(absent, rest),
        )
        contextual = self._merged(tokens, rest, joined, spaced)
        x = jnp.concatenate([rows_of(tokens.x[:, prefix:], dominant), contextual.astype(tokens.x.dtype)], axis=1)
        row_map = jax.vmap(lambda rows, ids, to: rows.at[ids].set(to))(places(dominant, n), rest, joined + num_dominant)
        centres = jnp.concatenate([dominant, rest[:, spaced]], axis=1)
        return clusters.clustered(tokens, x, row_map, centres, self.step)

    def _merged(
        self, tokens: Tokens, rest: Int[Array, "b m"], joined: Int[Array, "b m"], spaced: Int[np.ndarray, "c"]
    ) -> Float[Array, "b c d"]:
        """The contextual rows."""
        prefix = self.step.num_prefix_tokens
        x, sizes = (rows_of(values[:, prefix:], rest) for values in (tokens.x.astype(jnp.float32), tokens.size))
        is_target = np.isin(np.arange(rest.shape[1]), spaced)
        weights = sizes if self.merge == "mean" else jnp.where(is_target[None, :], 0, sizes)

        def mean(inside):
            shares = jnp.where(inside, weights[:, None, :], 0)
            return (shares / jnp.maximum(shares.sum(2, keepdims=True), jnp.finfo(jnp.float32).tiny)) @ x

        means = clusters.by_cluster(mean, joined, len(spaced))
        if self.merge == "mean":
            return means
        return x[:, spaced] * (sizes[:, spaced, None] > 0) + means


def rows_of(values: Array, ids: Int[Array, "b k"]) -> Array:
    """Rows `ids` of each image."""
    return jax.vmap(lambda values, ids: values[ids])(values, ids)


def remaining(
    ids: Int[Array, "b k"], num_tokens: int, *, absent: Bool[Array, "b n"] | None = None
) -> Int[Array, "b m"]:
    """The rows that are not in `ids`, in rising order; those that are `absent` come last."""
    is_listed = places(ids, num_tokens) >= 0
    order = is_listed if absent is None else 2 * is_listed + absent
    return jnp.argsort(order, axis=1, stable=True)[:, : num_tokens - ids.shape[1]].astype(jnp.int32)


def targets(num_rows: int, num_targets: int) -> Int[np.ndarray, "c"]:
    """Evenly spaced rows, from the first on.

    >>> targets(11, 4).tolist()
    [0, 2, 4, 6]
    """
    return np.arange(num_targets) * max(num_rows // num_targets, 1)


def join(
    keys: Float[Array, "b m e"], spaced: Int[np.ndarray, "c"], *, absent: Bool[Array, "b m"] | None = None
) -> Int[Array, "b m"]:
    """For each row, the number of the target with the most similar key by cosine; a target joins itself.

    Args:
      spaced: the rows that are targets.
      absent: True for rows that hold nothing, which no other row joins.
    """
    keys = cosines.unit(keys)
    of_targets = keys[:, spaced]

    def nearest(rows):
        similar = cosines.products(rows, of_targets)
        if absent is not None:
            similar = jnp.where(absent[:, None, spaced], -2.0, similar)  # below every cosine
        return clusters.first_min(-similar, axis=2)

    joined = by_rows(nearest, keys, size=attention_kernels.row_block())
    number = np.full(keys.shape[1], -1, np.int32)
    number[spaced] = np.arange(len(spaced))
    return jnp.where(number[None, :] < 0, joined, number[None, :])
