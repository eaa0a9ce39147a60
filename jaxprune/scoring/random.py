"""Random: uniform random scores, the baseline that every scorer has to beat."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.ops.host_random import host_generator
from jaxprune.scoring.parts.base import Scorer


class Random(Scorer):
    """Uniform in [0, 1), independent for each patch.

    Without a key every image gets the same scores, so that they do not depend on the batch; with a key they are drawn
    for each image.

    Args:
      seed: for the scores without a key.
    """

    def __init__(self, *, seed: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.seed = seed

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        shape = (images.shape[0], self.num_patches)
        if key is not None:
            return jax.random.uniform(key, shape)
        scores = host_generator(self.seed).uniform(size=self.num_patches)
        return jnp.broadcast_to(jnp.asarray(scores, jnp.float32)[None, :], shape)
