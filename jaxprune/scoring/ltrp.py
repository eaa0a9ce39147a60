"""LTRP: a ranker trained on a masked autoencoder's reconstructions (Luo et al., 2024)."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.scoring.parts.base import Scorer


class Ltrp(Scorer):
    """The ranker's outputs on the whole image, one per patch.

    Args:
      proposal: the ranker, with one output per patch, such as a run of the task `train_ranker`.

    Raises:
      UserError: the number of outputs is not the number of patches, so the network is not a ranker.
    """

    reads = "ranker"

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        outputs = getattr(self.proposal, "num_classes", 0)
        if outputs != self.num_patches:
            raise UserError(
                f"{type(self).__name__} requires proposal= to be a ranker, with one output for each of the "
                f"{self.num_patches} patches, but got a {type(self.proposal).__name__} with {outputs} outputs."
            )

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        return self.proposal(self.prepared(images))[0].astype(jnp.float32)
