"""Predictions for every patch from the latent tokens of the visible ones: the Decoder protocol, and MAE's decoder.

`TokenDecoder` decodes all masked patches (MAE), or a subset of them, with the thrown ones left out (partial
reconstruction) or rebuilt from their decoded neighbours (PR-MIM).
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.errors import unknown
from jaxprune.mim.parts.masker import Masks
from jaxprune.mim.parts.partial_reconstruction import FULL, Partial
from jaxprune.mim.parts.rebuild_thrown import fill_grid
from jaxprune.nn import Block, LayerNorm, Linear
from jaxprune.nn.block import run_block
from jaxprune.nn.block_cost import block_flops, block_tokens, linear_flops
from jaxprune.nn.linear import normal_02, xavier_uniform
from jaxprune.nn.params import Computed
from jaxprune.nn.tokens import Tokens, all_present
from jaxprune.ops.patches import gather_tokens
from jaxprune.ops.posembed import sincos_2d


class Decoder(nnx.Module):
    """Predicts every patch from the encoder's output for the visible ones.

    Attributes:
      reconstruction: see `Partial`.
    """

    reconstruction: str = "full"

    def __call__(self, latent: Float[Array, "b n d"], masks: Masks) -> Float[Array, "b p q"]:
        """The prediction for every patch, in float32; zeros where there is none.

        Args:
          latent: the encoder's output: prefix tokens, then the visible patches in the order of `masks.ids_keep`.
        """
        raise NotImplementedError

    def flops(self, visible: int, present: int, *, as_published: bool = True) -> Any:
        """Multiply-accumulates of one image: an int, or a NamedTuple by part with a `total`.

        Args:
          visible: number of patches that the encoder sees.
          present: number of patches that enter the decoder.
          as_published: count the work of the published implementation, where it computes more than this one.
        """
        raise NotImplementedError


class DecoderFlops(NamedTuple):
    """The cost of a `TokenDecoder` by part."""

    embed: int
    blocks: int
    aggregate: int
    predict: int

    total = property(sum)  # of all parts


class TokenDecoder(Decoder):
    """A transformer over prefix, visible and mask tokens, any of which may be left out (MAE; PR-MIM).

    Args:
      in_dim: width of the encoder's tokens.
      out_dim: number of values to predict per patch.
      grid: patches down and across.
      num_prefix_tokens: number of prefix tokens of the encoder.
      dim, depth, num_heads: width, number and heads of the decoder's blocks.
      mlp_ratio, qkv_bias, norm_eps, init_values: see `Block`.
      pos_embed: positions of all tokens, "sincos" for MAE's fixed table (0 for the prefix), or "learn".
      partial: the kind of reconstruction, and how thrown patches are rebuilt.
      dtype: compute dtype; parameters stay float32.
      remat: recompute each block in the backward pass instead of keeping its activations.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        grid: tuple[int, int],
        num_prefix_tokens: int = 1,
        dim: int = 512,
        depth: int = 8,
        num_heads: int = 16,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        norm_eps: float = 1e-6,
        init_values: float | None = None,
        pos_embed: str = "sincos",
        partial: Partial = FULL,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        self.grid, self.num_prefix_tokens = grid, num_prefix_tokens
        self.reconstruction, self.remat = partial.reconstruction, remat
        common = {"kernel_init": xavier_uniform, "dtype": dtype, "rngs": rngs}
        style = {"mlp_ratio": mlp_ratio, "qkv_bias": qkv_bias, "norm_eps": norm_eps, "init_values": init_values}
        self.embed = Linear(in_dim, dim, **common)
        self.mask_token = nnx.Param(normal_02(rngs.params(), (1, 1, dim)))
        self.pos_embed = _positions(pos_embed, dim, grid, num_prefix_tokens, rngs)
        self.blocks = nnx.List(
            [Block(dim, num_heads, num_prefix_tokens=num_prefix_tokens, **style, **common) for _ in range(depth)]
        )
        self.norm = LayerNorm(dim, eps=norm_eps)
        self.pred = Linear(dim, out_dim, **common)
        self.aggregate = nnx.data(
            partial.create_aggregation(dim, num_heads=num_heads, mlp_ratio=mlp_ratio, dtype=dtype, rngs=rngs)
        )

    def positions(self, dtype: Any) -> tuple[Float[Array, "f d"], Float[Array, "p d"]]:
        """The positions of the prefix tokens and of the patches."""
        table = self.pos_embed[...][0].astype(dtype)
        return table[: self.num_prefix_tokens], table[self.num_prefix_tokens :]

    def mask_tokens(self, ids: Int[Array, "b k"], dtype: Any) -> Float[Array, "b k d"]:
        """The mask tokens of the masked patches `ids`."""
        return self.mask_token[...].astype(dtype) + self.positions(dtype)[1][ids]

    def sequence(self, latent: Float[Array, "b n d"], masks: Masks) -> Float[Array, "b m e"]:
        """The decoder's input: prefix tokens, then the patches `masks.ids_present`."""
        prefix, visible = self.num_prefix_tokens, masks.ids_keep.shape[1]
        x = self.embed(latent)
        of_prefix, of_patches = self.positions(x.dtype)
        # Row `visible` of the source is the mask token of every masked patch.
        mask_token = jnp.broadcast_to(self.mask_token[...].astype(x.dtype), (x.shape[0], 1, x.shape[2]))
        source = jnp.concatenate([x[:, prefix:], mask_token], axis=1)
        rows = jnp.minimum(masks.ids_restore, visible)
        if masks.ids_present.shape == rows.shape:
            patches = gather_tokens(source, rows) + of_patches[None]
        else:
            ids = masks.ids_present
            patches = gather_tokens(source, jnp.take_along_axis(rows, ids, axis=1)) + of_patches[ids]
        return jnp.concatenate([x[:, :prefix] + of_prefix[None], patches], axis=1)

    def tokens(self, latent: Float[Array, "b n d"], masks: Masks) -> Tokens:
        """Wraps the output of `sequence` as the tokens that enter the first block."""
        return all_present(self.sequence(latent, masks), self.num_prefix_tokens)

    def decode(self, latent: Float[Array, "b n d"], masks: Masks) -> Float[Array, "b m e"]:
        """Decodes prefix tokens and the patches `masks.ids_present`; before the norm."""
        tokens = self.tokens(latent, masks)
        for block in self.blocks:
            tokens, _, _ = run_block(block, tokens, remat=self.remat)
        return tokens.x

    def head(self, decoded: Float[Array, "b m e"]) -> Float[Array, "b m q"]:
        """Maps decoded tokens to predictions, in float32."""
        return self.pred(self.norm(decoded)).astype(jnp.float32)

    def predict(self, decoded: Float[Array, "b m e"], masks: Masks) -> Float[Array, "b p q"]:
        """Maps decoded tokens to predictions for every patch; thrown ones are rebuilt, or zero under "partial"."""
        x, partial = decoded[:, self.num_prefix_tokens :], masks.ids_present.shape != masks.masked.shape
        if self.aggregate is not None:
            grid = fill_grid(x, masks.present) if partial else x
            return self.head(self.aggregate(grid, ~masks.present, self.grid))
        pred = self.head(x)
        return fill_grid(pred, masks.present) if partial else pred

    def __call__(self, latent: Float[Array, "b n d"], masks: Masks) -> Float[Array, "b p q"]:
        return self.predict(self.decode(latent, masks), masks)

    def flops(self, visible: int, present: int, *, as_published: bool = True) -> DecoderFlops:
        """Multiply-accumulates of one image by part; see `Decoder.flops`.

        As published, without aggregation, predictions are also computed for the prefix tokens, and discarded.
        """
        prefix, patches = self.num_prefix_tokens, self.grid[0] * self.grid[1]
        rows = block_tokens(None, prefix + present, prefix + present)
        predicted = patches if self.aggregate is not None else present + (prefix if as_published else 0)
        return DecoderFlops(
            embed=linear_flops(self.embed, prefix + visible),
            blocks=sum(block_flops(block.cost(), rows) for block in self.blocks),
            aggregate=0 if self.aggregate is None else self.aggregate.flops(self.grid),
            predict=linear_flops(self.pred, predicted),
        )


def _positions(kind: str, dim: int, grid: tuple[int, int], num_prefix_tokens: int, rngs: nnx.Rngs) -> nnx.Variable:
    if kind == "sincos":
        return Computed(jnp.asarray(sincos_2d(dim, grid, num_prefix_tokens))[None])
    if kind == "learn":
        return nnx.Param(normal_02(rngs.params(), (1, num_prefix_tokens + grid[0] * grid[1], dim)))
    raise unknown("decoder_pos_embed", kind, ("sincos", "learn"))
