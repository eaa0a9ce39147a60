"""LTRP: what a ranker has learnt from a masked autoencoder's reconstructions (Luo et al., 2024)."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.scoring.base import Normalisation, Scorer


class Ltrp(Scorer):
    """The ranker's outputs on the whole image, one a patch.

    Args:
      proposal: the ranker, with one output for each of its patches; a run of the task `train_ranker` loads as one.

    Raises:
      UserError: the network has another number of outputs, and so is no ranker.
    """

    reads = "ranker"

    def __init__(
        self,
        *,
        proposal: Any = None,
        grid: tuple[int, ...] | None = None,
        normalised: Normalisation | None = None,
    ):
        super().__init__(proposal=proposal, grid=grid, normalised=normalised)
        outputs = getattr(proposal, "num_classes", 0)
        if outputs != self.num_patches:
            given = "nothing" if proposal is None else f"a {type(proposal).__name__} with {outputs} outputs"
            raise UserError(
                f"ltrp reads a ranker, which has one output for each of the {self.num_patches} patches, and was given "
                f"{given}: proposal= has to be a network that was trained to rank patches."
            )

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        return self.proposal(self.prepared(images))[0].astype(jnp.float32)
