"""DINO: the CLS attention of the last block (Caron et al., 2021)."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.nn.run_blocks import on_grid
from jaxprune.scoring.parts.base import Scorer
from jaxprune.scoring.parts.networks import cls_attention


class DINO(Scorer):
    """Attention of the CLS token in the last block, summed over heads.

    Args:
      votes: if not 0, scores a patch by the number of heads that select it, as published code does to keep `votes`
        patches: each head selects its largest weights that make up the fraction votes/p of its attention to patches.
        An integer, so ties are common.
    """

    reads = "vit"

    def __init__(self, *, votes: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.votes, self.differentiable = votes, not votes

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        return on_grid(*self.native_scores(images), self.grid)

    def native_scores(self, images, *, key=None) -> tuple[Float[Array, "b p"], tuple[int, ...]]:
        attention = cls_attention(self.proposal, self.prepared(images))
        scores = attention.sum(1)
        if self.votes:
            scores = votes(attention, self.votes / attention.shape[-1]).sum(1).astype(jnp.float32)
        return scores, self.proposal.sites()[-1].grid


def votes(attention: Float[Array, "b h p"], mass: float) -> Int[Array, "b h p"]:
    """1 where a patch is among the largest weights of a head that make up the fraction `mass` of their sum."""
    order = jnp.argsort(attention, axis=-1, stable=True)
    ascending = jnp.take_along_axis(attention, order, axis=-1)
    share = jnp.cumsum(ascending / ascending.sum(-1, keepdims=True), axis=-1)
    ranks = jnp.argsort(order, axis=-1, stable=True)
    return jnp.take_along_axis((share > 1 - mass).astype(jnp.int32), ranks, axis=-1)
