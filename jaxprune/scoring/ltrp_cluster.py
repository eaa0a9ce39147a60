"""LTRP with diversity: most patches by their score, the others from all over the image (Luo et al., 2024, the code)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.ops.patches import patchify
from jaxprune.reduction.dpc_knn import dpc_knn
from jaxprune.reduction.rows import best, places
from jaxprune.scoring.ltrp import Ltrp


class LtrpCluster(Ltrp):
    """Ranks first the `int(num_keep · ratio)` best patches, then one patch of each of the largest clusters of pixels.

    The scores are made for `num_keep` patches: those of the choice lie above 1, all others keep the ranker's order.

    Args:
      proposal: the ranker.
      num_keep: patches to keep; 0 stands for a quarter of them.
      ratio: share of those that the score alone decides.
    """

    def __init__(self, *, num_keep: int = 0, ratio: float = 0.7, **kwargs: Any):
        super().__init__(**kwargs)
        if not 0 <= num_keep <= self.num_patches:
            raise UserError(f"num_keep {num_keep} is not a number of the {self.num_patches} patches.")
        if not 0 <= ratio <= 1:
            raise UserError(f"ratio {ratio} is outside [0, 1]: it is a share of the patches kept.")
        self.kept, self.ratio = num_keep or max(self.num_patches // 4, 1), ratio

    def __call__(self, images, *, key=None, noise: Float[Array, "b p"] | None = None) -> Float[Array, "b p"]:
        """See `Scorer`; without a key a cluster is represented by its best patch.

        Args:
          noise: in place of the key's: a cluster is represented by its patch with the most.
        """
        scores = super().__call__(images)
        if noise is None:
            noise = scores if key is None else jax.random.uniform(key, scores.shape)
        height, width = images.shape[1] // self.grid[0], images.shape[2] // self.grid[1]
        chosen = diverse(scores, patchify(images, (height, width)), noise, self.kept, self.ratio)
        order = places(best(scores, self.num_patches), self.num_patches)
        place = places(chosen, self.num_patches)
        return jnp.where(place < 0, 1 - (order + 1) / self.num_patches, 2 - place / self.kept)


def diverse(
    scores: Float[Array, "b p"],
    pixels: Float[Array, "b p q"],
    noise: Float[Array, "b p"],
    num_keep: int,
    ratio: float,
) -> Int[Array, "b k"]:
    """Chooses patches by score and, for what is left of `num_keep`, by clusters of their pixels.

    There are `num_keep` clusters (DPC-KNN, five neighbours). Of the largest of them comes the patch with the most noise
    that the score has not chosen already; of clusters of one size, first the one with more of these patches.

    Returns:
      Patches: the best first, then the clusters'.
    """
    first = best(scores, int(num_keep * ratio))
    free = places(first, scores.shape[1]) < 0
    _, assign = dpc_knn(pixels, num_keep)
    member = assign[:, None, :] == jnp.arange(num_keep, dtype=assign.dtype)[None, :, None]
    left = member & free[:, None, :]
    representative = jnp.where(left, noise[:, None, :], -jnp.inf).argmax(2)
    many, few = member.sum(2), left.sum(2)
    # A cluster without any patch left comes last.
    size = jnp.where(few > 0, many * scores.shape[1] + few, -1)
    largest = best(size.astype(jnp.float32), num_keep - first.shape[1])
    return jnp.concatenate([first, jnp.take_along_axis(representative, largest, axis=1)], axis=1).astype(jnp.int32)
