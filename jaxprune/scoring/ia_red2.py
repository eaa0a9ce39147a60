"""IA-RED²: patches that a learned agent in front of a group of blocks finds informative (Pan et al., 2021)."""

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.nn import LayerNorm, Linear
from jaxprune.nn.tensor_rules import Rule, linear, linear_back
from jaxprune.scoring.parts.base import Scorer


class Agent(nnx.Module):
    """The probability that each token is informative: sigmoid of the CLS query times its key, averaged over heads."""

    def __init__(self, dim: int, num_heads: int, *, rngs: nnx.Rngs):
        self.num_heads = num_heads
        self.norm = LayerNorm(dim, eps=1e-5, affine=False)
        # The published layer also has values, which are unused.
        self.qk = Linear(dim, 3 * dim, rngs=rngs)

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n"]:
        b, n, d = x.shape
        qkv = self.qk(self.norm(x.astype(jnp.float32)))
        q, k, _ = jnp.moveaxis(qkv.reshape(b, n, 3, self.num_heads, d // self.num_heads), 2, 0)
        logits = jnp.einsum("bhe,bnhe->bhn", q[:, 0], k) / math.sqrt(d // self.num_heads)
        return jax.nn.sigmoid(logits).mean(1)


class IARED2(Scorer):
    """The probability of being informative, from the agent of one group of blocks; 0 if an earlier group drops a patch.

    A group drops patches with a probability of one half or less: its blocks mask them. The ViT must have a CLS token.

    Args:
      groups: the number of groups, all of the same number of blocks.
      group: the index of the group whose agent scores: the second, as in the paper; published code uses the first (0).

    Attributes:
      agents: one per group.
    """

    reads = "vit"
    own_patches = True
    needs_sequence = True
    needs_cls = True
    published_rules = (
        Rule("groups.{any}.agent.qk.weight", "agents.{any}.qk.kernel", linear, linear_back),
        Rule("groups.{any}.agent.qk.bias", "agents.{any}.qk.bias"),
    )

    def __init__(self, *, groups: int = 3, group: int = 1, rngs: nnx.Rngs | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        vit = self.proposal
        depth = len(vit.blocks)
        if depth % groups or not 0 <= group < groups:
            raise UserError(
                f"group={group} and groups={groups} do not fit a ViT of {depth} blocks: pass groups= that divides "
                "the depth, and a group= from 0 to groups - 1."
            )
        rngs = rngs or nnx.Rngs(0)
        self.group, self.blocks_per_group = group, depth // groups
        self.agents = nnx.List([Agent(vit.embed_dim, vit.num_heads, rngs=rngs) for _ in range(groups)])

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        groups = {match[1] for name in shapes if (match := re.fullmatch(r"groups\.(\d+)\.agent\.qk\.weight", name))}
        return {"groups": len(groups)} if groups else {}

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        return self.probabilities(self.prepared(images))[:, self.proposal.num_prefix_tokens :]

    def probabilities(self, images: Float[Array, "b *sides c"]) -> Float[Array, "b n"]:
        """The probability for every token; prefix tokens are never dropped, whatever theirs is."""
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
            for block in vit.blocks[group * self.blocks_per_group : (group + 1) * self.blocks_per_group]:
                x = block.run(x, policy=policy)
        return probabilities
