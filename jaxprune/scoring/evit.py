"""EViT: attentive patches, by the CLS attention of one block or by the stages that keep them (Liang et al., 2022)."""

import math
from typing import Any

from jaxtyping import Array, Float

from jaxprune import reduction
from jaxprune.errors import UserError
from jaxprune.scoring.base import Scorer
from jaxprune.scoring.networks import cls_attention, survival


class EViT(Scorer):
    """CLS attention in the fourth block, averaged over the heads.

    Args:
      layer: the block that is read, from 0.
      num_keep: ranks instead by an EViT that drops patches in steps until it keeps about `num_keep` of them, as
        published code does: each step leaves the share (num_keep/p)^(1/steps) of its rows, rounded up, and the row that
        fuses the others is one of them. 0 stands for the attention.
      reduction_loc: the blocks in which that EViT drops patches.
    """

    reads = "vit"

    def __init__(self, *, layer: int = 3, num_keep: int = 0, reduction_loc: tuple[int, ...] = (3, 6, 9), **kwargs: Any):
        super().__init__(**kwargs)
        depth = len(self.proposal.blocks)
        if not -depth <= layer < depth:
            raise UserError(f"evit reads block {layer}, and the ViT has {depth} blocks: use layer={depth - 1}.")
        self.layer, self.in_stages = layer, bool(num_keep)
        if num_keep:
            counts = stage_counts(self.proposal.num_patches, num_keep, len(reduction_loc))
            plan = reduction.Plan("evit", num_keep=counts, reduction_loc=reduction_loc)
            self.proposal = reduction.apply(self.proposal, plan)

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        images = self.prepared(images)
        if not self.in_stages:
            return cls_attention(self.proposal, images, self.layer).mean(1)
        _, aux = self.proposal(images)
        return survival(aux.kept, self.num_patches)


def stage_counts(num_patches: int, num_keep: int, num_stages: int) -> tuple[int, ...]:
    """Rows that each stage keeps: the same share of what arrives at each, the fused row counted, rounded up."""
    rate = (num_keep / num_patches) ** (1 / num_stages)
    counts, rows = [], num_patches
    for _ in range(num_stages):
        counts.append(math.ceil(rows * rate))
        rows = counts[-1] + 1
    return tuple(counts)
