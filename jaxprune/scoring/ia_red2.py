"""IA-RED²: what agents before groups of blocks call informative, by query and key (Pan et al., 2021)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.nn import Linear
from jaxprune.scoring.base import Scorer


class Agent(nnx.Module):
    """Probabilities of being informative: the sigmoid of the CLS query times each key, averaged over the heads."""

    def __init__(self, dim: int, num_heads: int, *, rngs: nnx.Rngs):
        self.num_heads = num_heads
        # Published with room for values, which nothing reads.
        self.qk = Linear(dim, 3 * dim, rngs=rngs)

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n"]:
        b, n, d = x.shape
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
        q, k, _ = jnp.moveaxis(self.qk(normed).reshape(b, n, 3, self.num_heads, d // self.num_heads), 2, 0)
        logits = jnp.einsum("bhe,bnhe->bhn", q[:, 0], k) / math.sqrt(d // self.num_heads)
        return jax.nn.sigmoid(logits).mean(1)


class IARED2(Scorer):
    """The probability that the agent of one group of blocks gives a patch; 0 for patches that a group before left out.

    Patches at or below one half are left out of their group's blocks. It needs a CLS token.

    Args:
      groups: groups of equally many blocks.
      group: whose agent scores, from 0: the second, as described; published code takes the first (0).

    Attributes:
      agents: a group each.
    """

    reads = "vit"

    def __init__(self, *, groups: int = 3, group: int = 1, rngs: nnx.Rngs | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        vit = self.proposal
        depth = len(vit.blocks)
        if depth % groups or not 0 <= group < groups:
            raise UserError(
                f"ia_red2 cannot take group {group} of {groups} groups of {depth} blocks: give groups= that divides "
                "the depth, and a group below it."
            )
        if not vit.num_prefix_tokens:
            raise UserError("ia_red2 asks the CLS token which patches are informative, and this ViT has none.")
        rngs = rngs or nnx.Rngs(0)
        self.group, self.blocks_each = group, depth // groups
        self.agents = nnx.List([Agent(vit.embed_dim, vit.num_heads, rngs=rngs) for _ in range(groups)])

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        return self.probabilities(self.prepared(images))[:, self.proposal.num_prefix_tokens :]

    def probabilities(self, images: Float[Array, "b H W c"]) -> Float[Array, "b n"]:
        """Of every token; the policy of the prefix is 1 whatever its probability."""
        vit = self.proposal
        prefix = vit.num_prefix_tokens
        x = vit.embed(images)
        policy = jnp.ones(x.shape[:2])
        for group in range(self.group + 1):
            probabilities = self.agents[group](x) * policy
            if group == self.group:
                break
            policy = (probabilities > 0.5).astype(x.dtype).at[:, :prefix].set(1.0)
            x = x * policy[:, :, None]
            for block in vit.blocks[group * self.blocks_each : (group + 1) * self.blocks_each]:
                gathered, _ = block.attend(block.project(block.norm1(x)), policy=policy)
                x = block.feed(block.mix(x, gathered))
        return probabilities
