"""MoCo: how strongly a network trained by contrast answers to each place (He et al., 2020; Chen et al., 2021)."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.scoring.base import Scorer, is_host
from jaxprune.scoring.maps import min_max, to_grid
from jaxprune.scoring.networks import cls_attention, feature_map


class MoCo(Scorer):
    """The last map of a ConvNet summed over its channels, stretched and bicubic to the grid.

    Of a ViT (MoCo v3) it is the CLS attention of the last block, averaged over the heads.

    Args:
      over_batch: stretches between the extremes of the whole batch, as published; then an image's scores depend on the
        others beside it, though not the order of its patches.
    """

    reads = "any"

    def __init__(self, *, over_batch: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.over_batch = over_batch

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        images = self.prepared(images)
        if is_host(self.proposal):
            return cls_attention(self.proposal, images).mean(1)
        maps = feature_map(self.proposal, images).astype(jnp.float32).sum(-1)
        stretched = min_max(maps[None], eps=0.0)[0] if self.over_batch else min_max(maps)
        return to_grid(stretched, self.grid)
