"""Random: scores drawn uniformly, the baseline that every scorer has to beat."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxprune.scoring.base import Scorer


class Random(Scorer):
    """Uniform in [0, 1), independently for each patch.

    Without a key the draw is the same for every image, so that an image's scores do not depend on its batch; with a key
    each image has a draw of its own.

    Args:
      seed: of the draw without a key.
    """

    def __init__(self, *, seed: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.seed = seed

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        shape = (images.shape[0], self.num_patches)
        if key is not None:
            return jax.random.uniform(key, shape)
        drawn = np.random.default_rng(self.seed).uniform(size=self.num_patches)
        return jnp.broadcast_to(jnp.asarray(drawn, jnp.float32)[None, :], shape)
