"""PaPr: the mean of a light ConvNet's last features says which patches matter, untrained (Mahmud et al., 2024)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.scoring.base import Scorer
from jaxprune.scoring.maps import to_grid
from jaxprune.scoring.networks import class_rows, feature_map


class PaPr(Scorer):
    """The patch significance map: features averaged over the channels, bicubic to the patches' grid.

    The classifier stays out of it, so what counts is where there is anything to see, not where one class is. A keep
    rate z leaves `int(n·z)` patches, where n counts the class token too, as published.

    Args:
      align_corners: corners of the map lie on corners of the grid, as in all published code; the paper's pseudo-code
        leaves it off.
      with_fc: weighs the channels by the classifier's row of the predicted class in place of averaging them (the
        ablation of Tab. IV).
    """

    reads = "any"

    def __init__(self, *, align_corners: bool = True, with_fc: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.align_corners, self.with_fc = align_corners, with_fc

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        features = feature_map(self.proposal, self.prepared(images))
        # The proposal is as it is: nothing is trained through it.
        return jax.lax.stop_gradient(self.significance(features))

    def significance(self, features: Float[Array, "b ... c"]) -> Float[Array, "b p"]:
        """The significance of every patch from the proposal's features, (h, w) or of a video (t, h, w)."""
        features = features.astype(jnp.float32)
        if self.with_fc:
            rows = class_rows(self.proposal, features)
            maps = jnp.einsum("b...c,bc->b...", features, rows)
        else:
            maps = features.mean(-1)
        return to_grid(maps, self.grid, align_corners=self.align_corners)

    def num_keep(self, keep_rate: float, num_prefix_tokens: int) -> int:
        return min(int((self.num_patches + num_prefix_tokens) * keep_rate), self.num_patches)
