"""MoCo: the activation strength of a contrastively trained network (He et al., 2020; Chen et al., 2021)."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.nn.run_blocks import on_grid
from jaxprune.scoring.parts.base import Scorer, is_host
from jaxprune.scoring.parts.maps import min_max, to_grid
from jaxprune.scoring.parts.networks import cls_attention, feature_map


class MoCo(Scorer):
    """The last feature map of a ConvNet summed over channels, rescaled to [0, 1), bicubic to the grid.

    For a ViT (MoCo v3), the CLS attention of the last block averaged over heads.

    Args:
      over_batch: rescales by the extremes of the whole batch, as published; an image's scores then depend on the rest
        of the batch, but the order of its patches does not.
    """

    reads = "any"

    def __init__(self, *, over_batch: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.over_batch = over_batch

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        if is_host(self.proposal):
            return on_grid(*self.native_scores(images), self.grid)
        maps = feature_map(self.proposal, self.prepared(images)).astype(jnp.float32).sum(-1)
        rescaled = min_max(maps[None], eps=0.0)[0] if self.over_batch else min_max(maps)
        return to_grid(rescaled, self.grid)

    def native_scores(self, images, *, key=None) -> tuple[Float[Array, "b p"], tuple[int, ...]]:
        if not is_host(self.proposal):
            return super().native_scores(images, key=key)
        return cls_attention(self.proposal, self.prepared(images)).mean(1), self.proposal.sites()[-1].grid
