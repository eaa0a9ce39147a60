"""Centre: patches nearer the centre of the image score higher, since photographers centre their subject."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxprune.errors import unknown
from jaxprune.reduction.parts.radial_patterns import NORMS
from jaxprune.scoring.parts.base import Scorer


class Centre(Scorer):
    """The negative distance of a patch from the centre, in patches; the same for every image.

    Args:
      norm: "l1", "l2" or "linf".
    """

    def __init__(self, *, norm: str = "l2", **kwargs: Any):
        super().__init__(**kwargs)
        if norm not in NORMS:
            raise unknown("norm", norm, NORMS)
        self.norm = norm

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        centred = (np.arange(side) - (side - 1) / 2 for side in self.grid)
        scores = jnp.asarray(-NORMS[self.norm](*np.ix_(*centred)).reshape(-1), jnp.float32)
        return jnp.broadcast_to(scores[None, :], (images.shape[0], self.num_patches))
