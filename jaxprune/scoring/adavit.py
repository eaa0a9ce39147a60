"""AdaViT: the number of blocks in which a learned token policy keeps a patch (Meng et al., 2022)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.nn import Linear
from jaxprune.scoring.base import Scorer
from jaxprune.scoring.networks import run_masked


class AdaViT(Scorer):
    """How many of the last blocks keep a patch, by their token policies; an integer, so ties are common.

    The policy of a block is a head with one output on its normalised patches. A patch that it drops is masked as a key
    in that block and passes through unchanged. AdaViT's policies for whole heads and blocks are not part of the score.

    Args:
      threshold: on the sigmoid of a head's output.
      last: the number of blocks that are counted, from the end.

    Attributes:
      heads: one policy head per block.
    """

    reads = "vit"

    def __init__(self, *, threshold: float = 0.6, last: int = 6, rngs: nnx.Rngs | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        rngs = rngs or nnx.Rngs(0)
        self.threshold, self.last = threshold, last
        self.heads = nnx.List([Linear(self.proposal.embed_dim, 1, rngs=rngs) for _ in self.proposal.blocks])

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        logits = self.policy_logits(self.prepared(images))
        return self.decisions(logits)[:, -self.last :].sum(1).astype(jnp.float32)

    def decisions(self, logits: Float[Array, "b l p"]) -> Int[Array, "b l p"]:
        """1 where a block keeps a patch."""
        return (jax.nn.sigmoid(logits) > self.threshold).astype(jnp.int32)

    def policy_logits(self, images: Float[Array, "b H W c"]) -> Float[Array, "b l p"]:
        """The output of each block's head for each patch."""
        vit = self.proposal
        prefix = vit.num_prefix_tokens
        x, found = vit.embed(images), []
        for block, head in zip(vit.blocks, self.heads, strict=True):
            normed = block.norm1(x)
            logits = head(normed[:, prefix:])[:, :, 0].astype(jnp.float32)
            found.append(logits)
            policy = jnp.pad(self.decisions(logits[:, None])[:, 0], ((0, 0), (prefix, 0)), constant_values=1)
            policy = policy.astype(x.dtype)
            x = run_masked(block, x, normed, policy)
        return jnp.stack(found, axis=1)
