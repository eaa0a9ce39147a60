"""EViT: keep the attentive patches and fuse the others into one token (Liang et al., 2022)."""

import math

import jax.numpy as jnp
from flax import nnx

from jaxprune.nn.tokens import Tokens
from jaxprune.reduction.parts import rows_by_product
from jaxprune.reduction.parts.base import Reducer, Step, StepReport
from jaxprune.reduction.parts.keep_rows import best, cls_scores, keep_rows, unchanged
from jaxprune.reduction.parts.merged_position import merged_position
from jaxprune.reduction.parts.row_maps import compose, places


class EViT(Reducer):
    """Top-K plus one fused row: the sum of the inattentive tokens weighted by their CLS attention.

    The weights are the softmax values and sum to less than one, as in both published implementations. The fused row is
    the last; at later steps it competes like any other. `assign` maps the inattentive patches to it, `kept` lists it as
    -1.

    Args:
      renormalise: divide the weights by their sum, so that the fused token is the paper's weighted mean.
    """

    where = "after"
    drops = False
    needs = frozenset({"cls_attn"})

    def __init__(self, step: Step, *, renormalise: bool = False, rngs: nnx.Rngs | None = None):
        super().__init__(step)
        self.renormalise = renormalise

    def num_tokens(self) -> int:
        return self.step.num_keep + (self.step.num_keep < self.step.tokens_in)

    def flops(self) -> int:
        return self.step.tokens_in * self.step.embed_dim

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, num_keep = self.step.num_prefix_tokens, self.step.num_keep
        if num_keep == self.step.tokens_in:
            return unchanged(tokens, prefix)
        scores = cls_scores(attended, prefix)
        ids = best(scores, num_keep)
        row_map = places(ids, scores.shape[1], default=num_keep)
        inattentive = (row_map == num_keep).astype(scores.dtype)
        weights = scores * inattentive
        if self.renormalise:
            # The sum is 0 where all inattentive rows are absent.
            weights = weights / jnp.maximum(weights.sum(1, keepdims=True), jnp.finfo(weights.dtype).tiny)
        kept = jnp.pad(ids, ((0, 0), (0, 1)), constant_values=-1)
        if rows_by_product.is_faster():
            shares = jnp.where(inattentive > 0, weights, 1.0)
            reduced = rows_by_product.rows_by_product(tokens, row_map, kept, prefix, shares=shares)
            return reduced, StepReport(row_map=row_map, kept=kept)
        fused = (tokens.x[:, prefix:] * weights[:, :, None]).sum(1, keepdims=True).astype(tokens.x.dtype)
        fused_sizes = tokens.size[:, prefix:] * inattentive
        fused_size = fused_sizes.sum(1, keepdims=True)
        # The fused row holds many patches, so its position is their mean under either rule.
        position = merged_position(tokens, fused_sizes[:, None, :], None, self.step)
        stay, _ = keep_rows(tokens, ids, prefix)
        reduced = Tokens(
            x=jnp.concatenate([stay.x, fused], axis=1),
            size=jnp.concatenate([stay.size, fused_size], axis=1),
            policy=jnp.concatenate([stay.policy, jnp.where(fused_size > 0, 1.0, 0.0)], axis=1),
            assign=compose(tokens.assign, row_map),
            position=jnp.concatenate([stay.position, position], axis=1),
        )
        return reduced, StepReport(row_map=row_map, kept=kept)


def warm_up(epoch: int, keep_rate: float, *, start: int = 10, epochs: int = 100) -> float:
    """The keep rate of an epoch in a warm-up schedule: 1 until `start`, then a cosine decay over `epochs`.

    It changes once per epoch, so that a run compiles at most one program per epoch of the decay.
    """
    if epoch < start:
        return 1.0
    if epoch >= start + epochs:
        return keep_rate
    return keep_rate + (1.0 - keep_rate) * (1.0 + math.cos(math.pi * (epoch - start) / epochs)) / 2
