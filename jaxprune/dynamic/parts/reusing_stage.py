"""A stage of DVT: a vision transformer whose blocks read features and relations of the stage before."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.dynamic.parts.reuse import FeatureReuse, RelationReuse
from jaxprune.nn.attention import Attention, attention_logits, merge_heads, weigh
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.linear import Linear, normal_02
from jaxprune.nn.mlp import Mlp
from jaxprune.nn.norm import LayerNorm
from jaxprune.nn.params import Fixed
from jaxprune.ops.posembed import sincos_1d


class StageOutput(NamedTuple):
    """What a stage computes for a batch.

    Attributes:
      logits: of the classes.
      features: the tokens after the last block, before the norm; the class token first.
      relations: the scaled attention logits of all blocks, float32, with what was added to them.
    """

    logits: Float[Array, "b c"]
    features: Float[Array, "b n d"]
    relations: Float[Array, "b l h n n"]


class _Block(nnx.Module):
    def __init__(
        self,
        dim: int,
        heads: int,
        hidden: int,
        *,
        qkv_bias: bool,
        eps: float,
        reuse: FeatureReuse | None,
        **common: Any,
    ):
        self.feature_reuse = nnx.data(reuse)
        inputs = dim + (0 if reuse is None else reuse.mlp.fc2.kernel.shape[1])
        self.norm1, self.norm2 = LayerNorm(dim, eps=eps), LayerNorm(inputs, eps=eps)
        self.attn = Attention(dim, heads, qkv_bias=qkv_bias, **common)
        self.mlp = Mlp(inputs, hidden, out=dim, **common)

    def __call__(self, x: Array, features: Array | None, added: Array | None) -> tuple[Array, Array]:
        q, k, v = self.attn.project(self.norm1(x))
        relations = attention_logits(q, k, added)
        x = x + self.attn.output(merge_heads(weigh(jax.nn.softmax(relations, axis=-1), v)))
        inner = x
        if self.feature_reuse is not None and features is not None:
            inner = jnp.concatenate([x, self.feature_reuse(features)], axis=-1)
        return x + self.mlp(self.norm2(inner)), relations

    def flops(self, tokens: int) -> int:
        layers = (self.attn.qkv, self.attn.proj, self.mlp.fc1, self.mlp.fc2)
        pairs = 2 * tokens * tokens * self.attn.proj.kernel.shape[0]
        context = 0 if self.feature_reuse is None else self.feature_reuse.flops()
        return sum(linear_flops(layer, tokens) for layer in layers) + pairs + context


class ReusingStage(nnx.Module):
    """A vision transformer with a class token, which can read the features and relations of a coarser one.

    Args:
      embed: images to side² tokens, with `flops`.
      side: tokens along a side of the image.
      coarser: that of the stage before; None for the first stage.
      hidden: width of the MLPs of the blocks.
      reuse_sizes: hidden width and width of `FeatureReuse`; None turns it off.
      relation_reuse: whether there is `RelationReuse`.
      learned_positions: whether positions are learned; else they are sines, which are not trained.
    """

    def __init__(
        self,
        embed: Any,
        side: int,
        coarser: int | None,
        *,
        dim: int,
        depth: int,
        heads: int,
        hidden: int,
        num_classes: int,
        qkv_bias: bool,
        eps: float,
        reuse_sizes: tuple[int, int] | None,
        relation_reuse: bool,
        learned_positions: bool,
        kernel_init: Any = normal_02,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        common = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.patch_embed, self.side = embed, side
        tokens = side * side + 1
        self.cls_token = nnx.Param(normal_02(rngs.params(), (1, 1, dim), jnp.float32))
        self.pos_embed = (
            nnx.Param(normal_02(rngs.params(), (1, tokens, dim), jnp.float32))
            if learned_positions
            else Fixed(jnp.asarray(sincos_1d(dim, tokens))[None])
        )
        sides = None if coarser is None else (coarser, side)
        context = lambda: FeatureReuse(dim, *reuse_sizes, sides, eps=eps, **common) if sides and reuse_sizes else None
        self.blocks = nnx.List(
            _Block(dim, heads, hidden, qkv_bias=qkv_bias, eps=eps, reuse=context(), **common) for _ in range(depth)
        )
        self.relation_reuse = nnx.data(
            RelationReuse(depth, heads, sides, **common) if sides and relation_reuse else None
        )
        self.norm = LayerNorm(dim, eps=eps)
        self.head = Linear(dim, num_classes, **common)

    def __call__(
        self,
        images: Float[Array, "b H W c"],
        features: Float[Array, "b n d"] | None = None,
        relations: Float[Array, "b l h n n"] | None = None,
    ) -> StageOutput:
        """Runs the stage on normalised images.

        Args:
          features, relations: those of the stage before, as far as this one reuses them.
        """
        x = self.patch_embed(images)
        first = jnp.broadcast_to(self.cls_token[...].astype(x.dtype), (len(x), 1, x.shape[-1]))
        x = jnp.concatenate([first, x], axis=1) + self.pos_embed[...].astype(x.dtype)
        reuse = self.relation_reuse
        added = None if reuse is None or relations is None else reuse(relations)
        logits = []
        for index, block in enumerate(self.blocks):
            x, block_logits = block(x, features, None if added is None else added[:, index])
            logits.append(block_logits)
        return StageOutput(self.head(self.norm(x[:, 0])), x, jnp.stack(logits, axis=1))

    def flops(self) -> int:
        """Multiply-accumulates of one image."""
        tokens = self.side**2 + 1
        blocks = sum(block.flops(tokens) for block in self.blocks)
        relations = 0 if self.relation_reuse is None else self.relation_reuse.flops()
        return self.patch_embed.flops() + blocks + relations + linear_flops(self.head, 1)
