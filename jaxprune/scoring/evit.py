"""EViT: attentive patches, from the CLS attention of one block or by pruning in stages (Liang et al., 2022)."""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune import reduction
from jaxprune.errors import UserError
from jaxprune.scoring.parts.base import Scorer
from jaxprune.scoring.parts.networks import cls_attention, survival


class EViT(Scorer):
    """CLS attention in one block, by default the fourth, averaged over heads.

    Args:
      layer: the index of that block.
      num_keep: if not 0, ranks patches by how long they survive in an EViT that prunes to about `num_keep` of them, as
        published code does: each stage keeps the fraction (num_keep/p)^(1/stages) of its rows, rounded up, where the
        fused token of the previous stage counts as a row.
      reduction_loc: the blocks in which that EViT prunes.
    """

    reads = "vit"
    own_patches = True
    needs_sequence = True

    def __init__(self, *, layer: int = 3, num_keep: int = 0, reduction_loc: tuple[int, ...] = (3, 6, 9), **kwargs: Any):
        super().__init__(**kwargs)
        depth = len(self.proposal.blocks)
        if not -depth <= layer < depth:
            raise UserError(
                f"layer={layer} is out of range, since the ViT has {depth} blocks: use layer={depth - 1} or less."
            )
        self.layer, self.staged = layer, bool(num_keep)
        self.differentiable = not num_keep
        if num_keep:
            counts = stage_counts(self.proposal.num_patches, num_keep, len(reduction_loc))
            plan = reduction.Plan("evit", num_keep=counts, reduction_loc=reduction_loc)
            self.proposal = reduction.apply(self.proposal, plan)
            installed = reduction.installed(self.proposal)
            self.staged = bool(installed)  # without a step that removes rows there are no stages to survive
            self.num_stages, self.last_count = len(installed), installed[-1].num_tokens() if installed else 0

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        images = self.prepared(images)
        if not self.staged:
            return cls_attention(self.proposal, images, self.layer).mean(1)
        _, aux = self.proposal(images)
        return survival(aux.kept, self.num_patches)

    def select(self, scores, num_keep):
        """See `Scorer`. With `num_keep` at construction, as published, patch 0 takes the place of a fused token."""
        if not self.staged or num_keep > self.last_count:
            return super().select(scores, num_keep)
        # `survival` leaves out the score of the fused token; argmax of a row without a match is 0.
        levels = self.num_stages - jnp.arange(num_keep) / self.last_count
        match = jnp.abs(scores[:, None, :] - levels[None, :, None]) < 0.5 / self.last_count
        return match.argmax(2).astype(jnp.int32)


def stage_counts(num_patches: int, num_keep: int, num_stages: int) -> tuple[int, ...]:
    """Patches that each stage keeps: the same fraction of its input rows, fused token included, rounded up."""
    rate = (num_keep / num_patches) ** (1 / num_stages)
    counts, rows = [], num_patches
    for _ in range(num_stages):
        counts.append(math.ceil(rows * rate))
        rows = counts[-1] + (counts[-1] < rows)  # without patches to fuse there is no fused token
    return tuple(counts)
