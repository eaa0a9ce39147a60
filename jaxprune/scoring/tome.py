"""ToMe: one patch from each group of merged patches (Bolya et al., 2023)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune import reduction
from jaxprune.scoring.parts.base import Scorer


class ToMe(Scorer):
    """Merges patches in every block of a ViT until about `num_keep` groups remain, and selects one patch from each.

    A selected patch scores the number of its group, from 1 in the order of the network's tokens; all others score 0.
    Every block merges `int((n - num_keep) / depth)` of the n tokens, CLS included, so one group fewer than `num_keep`
    may remain.

    Args:
      num_keep: the number of groups; 0 means half the number of patches.
    """

    reads = "vit"
    differentiable = False
    own_patches = True
    needs_sequence = True

    def __init__(self, *, num_keep: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        tokens = self.num_patches + min(self.proposal.num_prefix_tokens, 1)
        r = int((tokens - (num_keep or self.num_patches // 2)) / len(self.proposal.blocks))
        if r:
            self.proposal = reduction.apply(self.proposal, reduction.Plan("tome", r=r))

    def __call__(self, images, *, key=None, noise: Float[Array, "b g n"] | None = None) -> Float[Array, "b p"]:
        """See `Scorer`; without a key each group is represented by its first patch.

        Args:
          noise: replaces the key's random numbers, for each group and patch.
        """
        _, aux = self.proposal(self.prepared(images))
        assign, groups = aux.tokens.assign, aux.tokens.x.shape[1] - self.proposal.num_prefix_tokens
        if noise is None:
            shape = (images.shape[0], groups, self.num_patches)
            falling = jnp.broadcast_to(jnp.arange(self.num_patches, 0.0, -1.0)[None, None, :], shape)
            noise = falling if key is None else jax.random.uniform(key, shape)
        return representatives(assign, noise)


def representatives(assign: Int[Array, "b p"], noise: Float[Array, "b g p"]) -> Float[Array, "b p"]:
    """The number of each group, from 1, at its member with the largest noise; 0 elsewhere."""
    groups = noise.shape[1]
    member = assign[:, None, :] == jnp.arange(groups)[None, :, None]
    member_ids = jnp.argmax(jnp.where(member, noise, -1.0), axis=2)
    number = lambda ids: jnp.zeros(assign.shape[1]).at[ids].max(jnp.arange(1.0, groups + 1))
    return jax.vmap(number)(member_ids)
