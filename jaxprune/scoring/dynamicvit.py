"""DynamicViT: the patches that its learned predictors keep, step by step (Rao et al., 2021)."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.reduction.dynamicvit import DynamicViT as Reducer
from jaxprune.scoring.parts.base import Scorer
from jaxprune.scoring.parts.networks import survival, tokens_before


class DynamicViT(Scorer):
    """Ranks patches by how many steps of `Plan("dynamicvit", …)` keep them, then by their order in the last of those.

    To rank for k patches as published, let that plan keep the fraction (k/p)^(1/3) at each of three steps.

    Args:
      first_stage: scores by the log-probability of being kept at the first step instead, which has no ties.
    """

    reads = "vit"
    own_patches = True

    def __init__(self, *, first_stage: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.first_stage = self.differentiable = first_stage
        blocks = [self.proposal.block(site) for site in self.proposal.sites()]
        layers = [layer for layer, block in enumerate(blocks) if isinstance(block.reducer, Reducer)]
        if not layers:
            raise UserError(
                "DynamicViT requires a ViT with predictors, but this one has none: pass the network that "
                'reduction.apply(vit, Plan("dynamicvit"), rngs=…) returns.'
            )
        self.layer = layers[0]

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        vit, images = self.proposal, self.prepared(images)
        if not self.first_stage:
            _, aux = vit(images)
            return survival(aux.kept, self.num_patches)
        rows = tokens_before(vit, images, self.layer).x[:, vit.num_prefix_tokens :]
        return vit.block(vit.sites()[self.layer]).reducer.log_probs(rows, jnp.ones(rows.shape[:2]))[:, :, 0]
