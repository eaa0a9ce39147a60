"""TEC's decoder: two branches that share their blocks, for a teacher's features and its attention."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.mim.parts.decoder import Decoder, DecoderFlops, TokenDecoder
from jaxprune.mim.parts.masker import Masks
from jaxprune.mim.parts.partial_reconstruction import Partial
from jaxprune.nn import Block
from jaxprune.nn.block import run_block
from jaxprune.nn.block_cost import block_flops, block_tokens, linear_flops
from jaxprune.nn.linear import xavier_uniform
from jaxprune.nn.tensor_rules import Rule, depthwise, depthwise_back, linear, linear_back, within
from jaxprune.ops.patches import gather_tokens


class BranchedDecoder(Decoder):
    """Two branches with separate inputs and outputs around shared blocks; "feature" predicts a row for every patch.

    Args:
      in_dim: width of the student's tokens.
      target_dim, target_heads: width of the teacher's tokens, and heads of its attention.
      grid, num_prefix_tokens: patch grid and number of prefix tokens of the student.
      dim, depth, num_heads: width, number and heads of the blocks.
      options: further arguments of `TokenDecoder`.
    """

    def __init__(
        self,
        in_dim: int,
        target_dim: int,
        target_heads: int,
        *,
        num_prefix_tokens: int,
        dim: int,
        depth: int,
        num_heads: int,
        rngs: nnx.Rngs,
        style: Mapping[str, Any],
        partial: Partial,
        dtype: Any = None,
        remat: bool = False,
        **options: Any,
    ):
        self.num_prefix_tokens, self.target_heads, self.remat = num_prefix_tokens, target_heads, remat
        self.reconstruction = partial.reconstruction
        # Separate random streams: the presence of an aggregation does not change other draws.
        streams = [nnx.Rngs(rngs.params()) for _ in range(3)]
        common = {"num_prefix_tokens": num_prefix_tokens, "dtype": dtype, **style}
        self.blocks = nnx.List(
            [Block(dim, num_heads, kernel_init=xavier_uniform, rngs=streams[0], **common) for _ in range(depth)]
        )
        branch = {**options, **common, "dim": dim, "depth": 0, "num_heads": num_heads, "partial": partial}
        self.feature = TokenDecoder(in_dim, target_dim, rngs=streams[1], **branch)
        self.attention = TokenDecoder(in_dim, 2 * target_dim, rngs=streams[2], **branch)

    def decode(self, branch: TokenDecoder, latent: Float[Array, "b n d"], masks: Masks) -> Float[Array, "b m e"]:
        """Runs the shared blocks on the input of a branch; before the norm."""
        tokens = branch.tokens(latent, masks)
        for block in self.blocks:
            tokens, _, _ = run_block(block, tokens, remat=self.remat)
        return tokens.x

    def __call__(self, latent: Float[Array, "b n d"], masks: Masks) -> Float[Array, "b p q"]:
        """The predicted features, see `Decoder`."""
        return self.feature.predict(self.decode(self.feature, latent, masks), masks)

    def attend(self, latent: Float[Array, "b n d"], masks: Masks, ids: Int[Array, "b k"]) -> Float[Array, "b m h p"]:
        """The predicted attention logits of CLS and the patches `ids` as queries over all patches as keys, in float32.

        Under "partial", queries and keys of thrown patches are zero.
        """
        decoded = self.decode(self.attention, latent, masks)
        patches = self.attention.predict(decoded, masks)
        width = patches.shape[2] // 2
        of_cls = self.attention.head(decoded[:, :1])[:, :, :width]
        queries = jnp.concatenate([of_cls, gather_tokens(patches[:, :, :width], ids)], axis=1)
        heads = lambda rows: rows.reshape(*rows.shape[:2], self.target_heads, -1)
        # Scaled by the full width, not by the width of a head.
        return jnp.einsum("bmhe,bphe->bmhp", heads(queries), heads(patches[:, :, width:])) * width**-0.5

    def flops(self, visible: int, present: int, *, as_published: bool = True) -> DecoderFlops:
        """Multiply-accumulates of both branches; see `Decoder.flops`."""
        prefix = self.num_prefix_tokens
        rows = block_tokens(None, prefix + present, prefix + present)
        branches = [b.flops(visible, present, as_published=as_published) for b in (self.feature, self.attention)]
        return DecoderFlops(
            embed=sum(branch.embed for branch in branches),
            blocks=2 * sum(block_flops(block.cost(), rows) for block in self.blocks),
            aggregate=sum(branch.aggregate for branch in branches),
            # The CLS token is a query too; as published without aggregation, it is counted with the prefix.
            predict=sum(branch.predict for branch in branches)
            + linear_flops(self.attention.pred, 0 if as_published and self.attention.aggregate is None else 1),
        )


def branch_rules(published: str, prefix: str, head: str) -> tuple[Rule, ...]:
    """Returns the published names of a branch: of its rebuilding, its mask token, and its `head`."""
    return (
        Rule(f"{published}agg.weight", f"{prefix}aggregate.kernel", depthwise, depthwise_back),
        Rule(f"{published}agg.conv_dw.weight", f"{prefix}aggregate.conv_dw.kernel", depthwise, depthwise_back),
        *within(f"{published}agg.", f"{prefix}aggregate."),
        Rule(f"{published}mask_token", f"{prefix}mask_token"),
        Rule(f"{published}{head}.weight", f"{prefix}pred.kernel", linear, linear_back),
        Rule(f"{published}{head}.bias", f"{prefix}pred.bias"),
        *within(f"{published}decoder_", prefix),
    )
