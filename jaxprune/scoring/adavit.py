"""AdaViT: the number of blocks in which a learned token policy keeps a patch (Meng et al., 2022)."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.nn import Linear
from jaxprune.nn.tensor_rules import Rule, linear, linear_back
from jaxprune.scoring.parts.base import Scorer

_SKIPPED = 0.5  # threshold of the policies for heads and sublayers


class Policies(nnx.Module):
    """The policies of one block, one linear layer each; `skips` adds those for its heads and its two sublayers."""

    def __init__(self, dim: int, num_heads: int, *, skips: bool, rngs: nnx.Rngs):
        self.tokens = Linear(dim, 1, rngs=rngs)
        self.heads = nnx.data(Linear(dim, num_heads, rngs=rngs) if skips else None)
        self.sublayers = nnx.data(Linear(dim, 2, rngs=rngs) if skips else None)


class AdaViT(Scorer):
    """The number of last blocks that keep a patch, by their token policies; an integer, so ties are common.

    The policy of a block is a head with one output on its normalised patches. A patch that it drops is masked as a key
    in that block and passes through unchanged. The published network also drops whole heads, and attention or MLP, by
    policies on the CLS token that enters a block; `whole_blocks` adds those.

    Args:
      threshold: on the sigmoid of a token policy's output; published is 0.6, and 0.5 for the other policies.
      last: the number of blocks to count, from the end.
      whole_blocks: the number of first blocks that drop no heads and no sublayers, while the others do; published is 1.
        None: no block does.

    Attributes:
      policies: the policies of each block.
    """

    reads = "vit"
    differentiable = False
    own_patches = True
    needs_sequence = True
    published_rules = tuple(
        rule
        for published, path in (
            ("attn.token_select", "tokens"),
            ("head_select", "heads"),
            ("layer_select", "sublayers"),
        )
        for rule in (
            Rule(f"blocks.{{any}}.{published}.mlp_head.weight", f"policies.{{any}}.{path}.kernel", linear, linear_back),
            Rule(f"blocks.{{any}}.{published}.mlp_head.bias", f"policies.{{any}}.{path}.bias"),
        )
    )

    def __init__(
        self,
        *,
        threshold: float = 0.6,
        last: int = 6,
        whole_blocks: int | None = None,
        rngs: nnx.Rngs | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        rngs, vit = rngs or nnx.Rngs(0), self.proposal
        self.threshold, self.last = threshold, last
        skips = lambda index: whole_blocks is not None and index >= whole_blocks
        self.policies = nnx.List(
            [Policies(vit.embed_dim, vit.num_heads, skips=skips(index), rngs=rngs) for index in range(len(vit.blocks))]
        )

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        blocks = [
            int(match[1])
            for name in shapes
            if (match := re.fullmatch(r"blocks\.(\d+)\.(?:head|layer)_select\.mlp_head\.weight", name))
        ]
        return {"whole_blocks": min(blocks)} if blocks else {}

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        logits = self.policy_logits(self.prepared(images))
        return self.decisions(logits)[:, -self.last :].sum(1).astype(jnp.float32)

    def decisions(self, logits: Float[Array, "b l p"]) -> Int[Array, "b l p"]:
        """Returns 1 where a block keeps a patch."""
        return (jax.nn.sigmoid(logits) > self.threshold).astype(jnp.int32)

    def policy_logits(self, images: Float[Array, "b *sides c"]) -> Float[Array, "b l p"]:
        """The output of each block's token policy for each patch."""
        vit = self.proposal
        prefix = vit.num_prefix_tokens
        x, of_blocks = vit.embed(images), []
        for block, policies in zip(vit.blocks, self.policies, strict=True):
            normed = block.normed(x)
            logits = policies.tokens(normed[:, prefix:])[:, :, 0].astype(jnp.float32)
            of_blocks.append(logits)
            policy = jnp.pad(self.decisions(logits[:, None])[:, 0], ((0, 0), (prefix, 0)), constant_values=1)
            policy = policy.astype(x.dtype)
            if policies.heads is None:
                x = jnp.where(policy[:, :, None] > 0, block.run(x, policy=policy, normed=normed), x)
            else:
                x = _run_skipping(block, x, normed, policy, policies)
        return jnp.stack(of_blocks, axis=1)


def _run_skipping(
    block: Any, x: Float[Array, "b n d"], normed: Float[Array, "b n d"], policy: Float[Array, "b n"], policies: Policies
) -> Float[Array, "b n d"]:
    """Runs a block without the heads and sublayers that the policies on the CLS token drop.

    A dropped head gathers nothing, and as published its channels do not enter the MLP either.
    """
    kept = lambda layer: jax.nn.sigmoid(layer(x[:, 0]).astype(jnp.float32)) > _SKIPPED
    attention, mlp = jnp.split(kept(policies.sublayers), 2, axis=1)
    heads = kept(policies.heads).astype(x.dtype)
    channels = jnp.repeat(heads, x.shape[2] // heads.shape[1], axis=1)[:, None]
    active = policy[:, :, None] > 0
    gathered = block.gather(x, policy=policy, normed=normed)
    x = jnp.where(active & attention[:, :, None], block.mix(x, gathered * channels), x)
    return jnp.where(active & mlp[:, :, None], block.feed(x, channels=channels), x)
