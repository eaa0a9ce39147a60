"""The Scorer protocol: images in, one score a patch out."""

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.nn import Host
from jaxprune.reduction.rows import best

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]


class Scorer(nnx.Module):
    """Ranks the patches of images: subclass it in a file of its own and the family finds it.

    A scorer is a module, so the weights that it reads are arguments of a program and not constants in it.

    Args:
      proposal: the network whose features, attention or gradients rank the patches.
      grid: patches that are scored, (rows, columns), of a video (frames, rows, columns); by default those of a
        `proposal` that has patches itself.
      normalised: (mean, std) that the pixels, from 0 to 1, were normalised with, a value each a channel. They are then
        put into the form that `proposal` was trained on (its `mean` and `std`). None: it gets the images as they are.

    Attributes:
      reads: what `proposal` has to be: "vit", "convnet", "any" of the two, "ranker", "optional" (it can do
        without) or "nothing".

    Raises:
      UserError: there is no grid, or the network is of the wrong kind.
    """

    reads: ClassVar[str] = "nothing"

    def __init__(
        self,
        *,
        proposal: Any = None,
        grid: tuple[int, ...] | None = None,
        normalised: Normalisation | None = None,
    ):
        name = type(self).__module__.rsplit(".", 1)[-1]
        _check(name, self.reads, proposal)
        if grid is None:
            grid = getattr(proposal, "grid", None)
        if grid is None:
            raise UserError(
                f"{name} does not know which patches to score: give grid=(rows, columns), such as (14, 14)."
            )
        if normalised is not None and not hasattr(proposal, "mean"):
            raise UserError(
                f"{name} was told normalised={normalised}, but its network does not say what it was trained on: leave "
                "normalised out, or set mean and std of the network."
            )
        self.proposal = nnx.data(proposal)
        self.grid: Any = tuple(int(side) for side in grid)
        self.num_patches = math.prod(self.grid)
        self.normalised = normalised

    def __call__(self, images: Float[Array, "b *sides c"], *, key: PRNGKeyArray | None = None) -> Float[Array, "b p"]:
        """Scores the patches of normalised images, in raster order; larger = keep.

        Args:
          key: randomness of the scorers that have any; they are deterministic without one.
        """
        raise NotImplementedError

    def select(self, scores: Float[Array, "b p"], num_keep: int) -> Int[Array, "b k"]:
        """The patches to keep, best first; of equal scores the first patch wins."""
        return best(scores, num_keep)

    def num_keep(self, keep_rate: float, num_prefix_tokens: int) -> int:
        """How many patches a keep rate leaves: the product in double precision, truncated."""
        return int(self.num_patches * keep_rate)

    def prepared(self, images: Float[Array, "b *sides c"]) -> Float[Array, "b *sides c"]:
        """The images as `proposal` was trained on them, if it is known how they come."""
        if self.normalised is None:
            return images
        (mean, std), (own_mean, own_std) = self.normalised, (self.proposal.mean, self.proposal.std)
        scale = np.asarray(std, np.float64) / np.asarray(own_std)
        shift = (np.asarray(mean, np.float64) - np.asarray(own_mean)) / np.asarray(own_std)
        lead = (1,) * (images.ndim - 1)
        per_channel = lambda values: jnp.asarray(values, images.dtype).reshape(*lead, -1)
        return images * per_channel(scale) + per_channel(shift)


def is_vit(network: Any) -> bool:
    """Whether a network is a transformer that reports tokens and attention (a `Host`)."""
    return isinstance(network, Host)


def _check(name: str, reads: str, proposal: Any) -> None:
    given = "nothing" if proposal is None else "a ViT" if is_vit(proposal) else f"a {type(proposal).__name__}"
    wanted = {
        "vit": (is_vit(proposal), "a ViT"),
        "convnet": (proposal is not None and not is_vit(proposal), "a ConvNet such as efficientnet_lite0"),
        "any": (proposal is not None, "a ConvNet or a ViT"),
        "nothing": (proposal is None, "nothing"),
    }
    fits, words = wanted.get(reads, (True, ""))
    if not fits:
        raise UserError(f"{name} reads {words}, and was given {given} as its network: proposal= has to be {words}.")
