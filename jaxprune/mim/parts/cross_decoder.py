"""CrossMAE's decoder: mask tokens attend to feature maps of the encoder, and not to each other (Fu et al., 2024)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.mim.parts.decoder import Decoder
from jaxprune.mim.parts.masker import Masks, ascending
from jaxprune.mim.parts.partial_reconstruction import FULL, Partial
from jaxprune.mim.parts.rebuild_thrown import fill_grid
from jaxprune.nn import LayerNorm, Linear, Mlp
from jaxprune.nn.attention import Attention, attend, merge_heads, split_heads
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.linear import normal_02, xavier_uniform
from jaxprune.nn.params import Computed
from jaxprune.ops.patches import gather_tokens
from jaxprune.ops.posembed import sincos_2d


class CrossAttention(nnx.Module):
    """Attention of one sequence to another: queries from `x`, keys and values from `context`.

    Args:
      dim: width of `x`.
      context_dim: width of `context`.
      num_heads: attention heads, which divide `dim`.
    """

    def __init__(self, dim: int, context_dim: int, num_heads: int, **common: Any):
        if dim % num_heads:
            raise UserError(
                f"decoder_embed_dim {dim} is not divisible by decoder_num_heads {num_heads}: change one of them."
            )
        self.num_heads = num_heads
        self.q = Linear(dim, dim, **common)
        self.kv = Linear(context_dim, 2 * dim, **common)
        self.proj = Linear(dim, dim, **common)

    def __call__(self, x: Float[Array, "b m e"], context: Float[Array, "b n d"]) -> Float[Array, "b m e"]:
        rows = (self.q(x), *jnp.split(self.kv(context), 2, axis=-1))
        q, k, v = (split_heads(part, self.num_heads) for part in rows)
        return self.proj(merge_heads(attend(q, k, v)))

    def flops(self, queries: int, keys: int) -> int:
        """Multiply-accumulates of one image."""
        projections = linear_flops(self.q, queries) + linear_flops(self.kv, keys) + linear_flops(self.proj, queries)
        return projections + 2 * queries * keys * self.q.kernel.shape[1]


class CrossBlock(nnx.Module):
    """`x += cross_attn(norm1(x), context); x += mlp(norm2(x))`, optionally after `x += self_attn(norm0(x))`.

    Args:
      dim, context_dim, num_heads: see `CrossAttention`.
      mlp_ratio, norm_eps: see `Block`.
      self_attn: whether the tokens also attend to each other.
    """

    def __init__(
        self,
        dim: int,
        context_dim: int,
        num_heads: int,
        *,
        mlp_ratio: float = 4.0,
        norm_eps: float = 1e-6,
        self_attn: bool = False,
        kernel_init: Any = xavier_uniform,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        common = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.norm0 = nnx.data(LayerNorm(dim, eps=norm_eps) if self_attn else None)
        self.self_attn = nnx.data(Attention(dim, num_heads, **common) if self_attn else None)
        self.norm1 = LayerNorm(dim, eps=norm_eps)
        self.cross_attn = CrossAttention(dim, context_dim, num_heads, **common)
        self.norm2 = LayerNorm(dim, eps=norm_eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), **common)

    def __call__(self, x: Float[Array, "b m e"], context: Float[Array, "b n d"]) -> Float[Array, "b m e"]:
        if self.self_attn is not None and self.norm0 is not None:
            gathered = merge_heads(attend(*self.self_attn.project(self.norm0(x))))
            x = x + self.self_attn.output(gathered)
        x = x + self.cross_attn(self.norm1(x), context)
        return x + self.mlp(self.norm2(x))

    def flops(self, queries: int, keys: int) -> int:
        """Multiply-accumulates of one image."""
        layers = [self.mlp.fc1, self.mlp.fc2]
        if self.self_attn is not None:
            layers += [self.self_attn.qkv, self.self_attn.proj]
        pairs = 0 if self.self_attn is None else 2 * queries**2 * self.mlp.fc1.kernel.shape[0]
        return sum(linear_flops(layer, queries) for layer in layers) + pairs + self.cross_attn.flops(queries, keys)


class CrossDecoderFlops(NamedTuple):
    """The cost of a `CrossDecoder` by part."""

    weigh: int
    blocks: int
    aggregate: int
    predict: int

    total = property(sum)  # of all parts


class CrossDecoder(Decoder):
    """Blocks of cross-attention from the mask tokens of the retained patches to the encoder's feature maps.

    With several maps, each block reads its own weighted sum of them, normalised; a single one is read as it is.

    Args:
      in_dim: width of the encoder's tokens.
      out_dim: number of values to predict per patch.
      grid: patches down and across.
      num_prefix_tokens: prefix tokens of the encoder, which the mask tokens attend to as well.
      num_maps: number of feature maps to weigh; None means one map, not weighed.
      self_attn: see `CrossBlock`.
      dim, depth, num_heads, mlp_ratio, norm_eps: of the blocks.
      partial: the kind of reconstruction, and how thrown patches are rebuilt. There is no token of a visible patch, so
        these are rebuilt from the retained patches around them.
      dtype: compute dtype; parameters stay float32.
      remat: recompute each block in the backward pass instead of keeping its activations.

    References:
      Fu et al., 2024, "Rethinking patch dependence for masked autoencoders", Sec. 3.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        grid: tuple[int, int],
        num_prefix_tokens: int = 1,
        num_maps: int | None = None,
        self_attn: bool = False,
        dim: int = 512,
        depth: int = 12,
        num_heads: int = 16,
        mlp_ratio: float = 4.0,
        norm_eps: float = 1e-6,
        partial: Partial = FULL,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        self.grid, self.num_prefix_tokens, self.in_dim = grid, num_prefix_tokens, in_dim
        self.reconstruction, self.remat = partial.reconstruction, remat
        common = {"kernel_init": xavier_uniform, "dtype": dtype, "rngs": rngs}
        style = {"mlp_ratio": mlp_ratio, "norm_eps": norm_eps, "self_attn": self_attn}
        self.mask_token = nnx.Param(normal_02(rngs.params(), (1, 1, dim)))
        self.pos_embed = Computed(jnp.asarray(sincos_2d(dim, grid, num_prefix_tokens))[None])
        self.weights = nnx.data(None if num_maps is None else Linear(num_maps, depth, use_bias=False, **common))
        norms = 0 if num_maps is None else depth
        self.map_norms = nnx.List([LayerNorm(in_dim, eps=norm_eps) for _ in range(norms)])
        self.blocks = nnx.List([CrossBlock(dim, in_dim, num_heads, **style, **common) for _ in range(depth)])
        self.norm = LayerNorm(dim, eps=norm_eps)
        self.pred = Linear(dim, out_dim, **common)
        self.aggregate = nnx.data(
            partial.create_aggregation(dim, num_heads=num_heads, mlp_ratio=mlp_ratio, dtype=dtype, rngs=rngs)
        )

    def contexts(self, maps: Float[Array, "m b n d"]) -> list[Float[Array, "b n d"]]:
        """What each block attends to: its weighted sum of the feature maps, normalised."""
        if self.weights is None:
            return [maps[0]] * len(self.blocks)
        weighted = jnp.einsum("mbnd,mj->jbnd", maps, self.weights.kernel[...].astype(maps.dtype))
        return [norm(x) for norm, x in zip(self.map_norms, weighted, strict=True)]

    def decode(self, maps: Float[Array, "m b n d"], masks: Masks) -> Float[Array, "b r e"]:
        """Decodes the retained patches, in raster order; before the norm."""
        ids = ascending(masks.retained, masks.ids_present.shape[1] - masks.ids_keep.shape[1])
        x = (self.mask_token[...] + self.pos_embed[...][0, self.num_prefix_tokens :][ids]).astype(maps.dtype)
        for block, context in zip(self.blocks, self.contexts(maps), strict=True):
            x = _run(block, x, context, remat=self.remat)
        return x

    def __call__(self, maps: Float[Array, "m b n d"], masks: Masks) -> Float[Array, "b p q"]:
        """The prediction for every masked patch, or every retained one under "partial"; zeros elsewhere.

        Args:
          maps: the encoder's feature maps: prefix tokens, then the visible patches.
        """
        decoded = self.decode(maps, masks)
        if self.aggregate is None:
            return fill_grid(self._head(decoded), masks.retained)
        grid = self.aggregate(fill_grid(decoded, masks.retained), masks.thrown, self.grid)
        ids = ascending(masks.masked, masks.masked.shape[1] - masks.ids_keep.shape[1])
        return fill_grid(self._head(gather_tokens(grid, ids)), masks.masked)

    def _head(self, decoded: Float[Array, "b m e"]) -> Float[Array, "b m q"]:
        return self.pred(self.norm(decoded)).astype(jnp.float32)

    def flops(self, visible: int, present: int, *, as_published: bool = True) -> CrossDecoderFlops:
        """Multiply-accumulates of one image by part; see `Decoder.flops`."""
        keys, retained = self.num_prefix_tokens + visible, present - visible
        patches = self.grid[0] * self.grid[1]
        return CrossDecoderFlops(
            weigh=0 if self.weights is None else linear_flops(self.weights, keys * self.in_dim),
            blocks=sum(block.flops(retained, keys) for block in self.blocks),
            aggregate=0 if self.aggregate is None else self.aggregate.flops(self.grid),
            predict=linear_flops(self.pred, retained if self.aggregate is None else patches - visible),
        )


def _run(
    block: CrossBlock, x: Float[Array, "b m e"], context: Float[Array, "b n d"], *, remat: bool
) -> Float[Array, "b m e"]:
    if not remat:
        return block(x, context)
    graph, state = nnx.split(block)
    return jax.checkpoint(lambda state, x, context: nnx.merge(graph, state)(x, context))(state, x, context)
