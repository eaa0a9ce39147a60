"""LTRP with diversity: most patches by score, the others from clusters of pixels (Luo et al., 2024, the code)."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.ops.patches import patchify
from jaxprune.reduction.dpc_knn import dpc_knn
from jaxprune.reduction.parts.keep_rows import best
from jaxprune.reduction.parts.row_maps import places
from jaxprune.scoring.ltrp import Ltrp


class LtrpCluster(Ltrp):
    """Ranks the `int(num_keep · ratio)` best patches first, then one patch from each of the largest clusters of pixels.

    The scores are for keeping `num_keep` patches: the selected ones score above 1, all others below, in the ranker's
    order.

    Args:
      proposal: the ranker.
      num_keep: the number of patches to keep; 0 means a quarter of them.
      ratio: the fraction of those that are selected by score alone.
    """

    dims: ClassVar = (2,)
    differentiable = False

    def __init__(self, *, num_keep: int = 0, ratio: float = 0.7, **kwargs: Any):
        super().__init__(**kwargs)
        if not 0 <= num_keep <= self.num_patches:
            raise UserError(f"num_keep={num_keep} is out of range: use 0 to {self.num_patches}, the number of patches.")
        if not 0 <= ratio <= 1:
            raise UserError(f"ratio={ratio} is out of range: use a fraction from 0 to 1.")
        self.num_selected, self.ratio = num_keep or max(self.num_patches // 4, 1), ratio

    def __call__(self, images, *, key=None, noise: Float[Array, "b p"] | None = None) -> Float[Array, "b p"]:
        """See `Scorer`; without a key each cluster is represented by its best patch.

        Args:
          noise: replaces the key's random numbers; each cluster is represented by the patch where it is largest.
        """
        scores = super().__call__(images)
        if noise is None:
            noise = scores if key is None else jax.random.uniform(key, scores.shape)
        height, width = images.shape[1] // self.grid[0], images.shape[2] // self.grid[1]
        ids = diverse(scores, patchify(images, (height, width)), noise, self.num_selected, self.ratio)
        order = places(best(scores, self.num_patches), self.num_patches)
        place = places(ids, self.num_patches)
        return jnp.where(place < 0, 1 - (order + 1) / self.num_patches, 2 - place / self.num_selected)


def diverse(
    scores: Float[Array, "b p"],
    pixels: Float[Array, "b p q"],
    noise: Float[Array, "b p"],
    num_keep: int,
    ratio: float,
) -> Int[Array, "b k"]:
    """Selects patches by score, and the rest of `num_keep` from clusters of pixels.

    There are `num_keep` clusters (DPC-KNN, five neighbours). Each is represented by the one of all its patches with the
    largest noise. A cluster whose representative was selected by score contributes nothing; of the others, the largest
    contribute theirs. The order among clusters of equal size is arbitrary, as it is in the published code.

    Args:
      scores: of the patches, larger = matters more.
      pixels: of the patches, in any order.
      noise: a random number for each patch.
      num_keep: number of patches to select.
      ratio: the fraction of those that are selected by score.

    Returns:
      Patch indices: those selected by score, best first, then those from clusters.
    """
    first = best(scores, int(num_keep * ratio))
    selected = places(first, scores.shape[1]) >= 0
    _, assign = dpc_knn(pixels, num_keep)
    member = assign[:, None, :] == jnp.arange(num_keep, dtype=assign.dtype)[None, :, None]
    representative = jnp.where(member, noise[:, None, :], -jnp.inf).argmax(2)
    # There are as many clusters as patches to keep, so that enough are left whichever the scores have selected.
    size = jnp.where(jnp.take_along_axis(selected, representative, axis=1), -1, member.sum(2))
    largest = best(size.astype(jnp.float32), num_keep - first.shape[1])
    return jnp.concatenate([first, jnp.take_along_axis(representative, largest, axis=1)], axis=1).astype(jnp.int32)
