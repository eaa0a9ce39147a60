"""A stage of DVT: a vision transformer whose blocks read features and relations of the stage before."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.dynamic.parts.reuse import FeatureReuse, RelationReuse
from jaxprune.nn.attention import Attention, attention_logits, merge_heads, weigh
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.drop_path import DropPath
from jaxprune.nn.linear import Linear, normal_02
from jaxprune.nn.mlp import Mlp
from jaxprune.nn.norm import LayerNorm
from jaxprune.nn.optional_key import fold_in, split_key
from jaxprune.nn.params import Fixed
from jaxprune.ops.patches import gather_tokens, scatter_tokens
from jaxprune.ops.posembed import sincos_1d


class ReusingStageOutput(NamedTuple):
    """The outputs of a stage for a batch, of which the next one reuses the features and relations.

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
        drop_path: float = 0.0,
        **common: Any,
    ):
        self.drop_path = DropPath(drop_path)
        self.feature_reuse = nnx.data(reuse)
        inputs = dim + (0 if reuse is None else reuse.mlp.fc2.kernel.shape[1])
        self.norm1, self.norm2 = LayerNorm(dim, eps=eps), LayerNorm(inputs, eps=eps)
        self.attn = Attention(dim, heads, qkv_bias=qkv_bias, **common)
        self.mlp = Mlp(inputs, hidden, out=dim, **common)

    def __call__(
        self,
        x: Array,
        features: Array | None,
        added: Array | None,
        rows: Array | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Array, Array]:
        keys = split_key(key)
        q, k, v = self.attn.project(self.norm1(x))
        relations = attention_logits(q, k, added)
        x = x + self.drop_path(self.attn.output(merge_heads(weigh(jax.nn.softmax(relations, axis=-1), v))), keys[0])
        inner = x
        if self.feature_reuse is not None and features is not None:
            context = self.feature_reuse(features)
            inner = jnp.concatenate([x, context if rows is None else gather_tokens(context, rows)], axis=-1)
        return x + self.drop_path(self.mlp(self.norm2(inner)), keys[1]), relations

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
      drop_path_rate: stochastic depth rate of the last block; rates rise linearly from 0.
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
        drop_path_rate: float = 0.0,
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
            _Block(dim, heads, hidden, qkv_bias=qkv_bias, eps=eps, reuse=context(), drop_path=rate, **common)
            for rate in np.linspace(0, drop_path_rate, depth).tolist()
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
        *,
        ids: Int[Array, "b k"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> ReusingStageOutput:
        """Runs the stage on normalised images.

        Args:
          features, relations: those of the stage before, as far as this one reuses them.
          ids: of the patches that are computed; None computes all. The features and relations of the others are 0.
          key: for stochastic depth, in training.
        """
        x = self.patch_embed(images)
        first = jnp.broadcast_to(self.cls_token[...].astype(x.dtype), (x.shape[0], 1, x.shape[-1]))
        x = jnp.concatenate([first, x], axis=1) + self.pos_embed[...].astype(x.dtype)
        # Rows of the tokens that are computed: the class token and the patches.
        rows = None if ids is None else jnp.pad(ids + 1, ((0, 0), (1, 0)))
        x = x if rows is None else gather_tokens(x, rows)
        reuse = self.relation_reuse
        added = None if reuse is None or relations is None else reuse(relations)
        logits = []
        for index, block in enumerate(self.blocks):
            layer = None if added is None else added[:, index]
            layer = layer if layer is None or rows is None else _pairs(layer, rows)
            block_key = fold_in(key, index)
            x, block_logits = block(x, features, layer, rows, block_key)
            logits.append(block_logits)
        scores, all_relations = self.head(self.norm(x[:, 0])), jnp.stack(logits, axis=1)
        if rows is not None:
            tokens = self.side**2 + 1
            x, all_relations = scatter_tokens(x, rows, tokens), _placed(all_relations, rows, tokens)
        return ReusingStageOutput(scores, x, all_relations)

    def flops(self, patches: int | None = None) -> int:
        """Multiply-accumulates of one image.

        Args:
          patches: how many are computed, by default all.
        """
        tokens = (self.side**2 if patches is None else patches) + 1
        blocks = sum(block.flops(tokens) for block in self.blocks)
        relations = 0 if self.relation_reuse is None else self.relation_reuse.flops()
        return self.patch_embed.flops() + blocks + relations + linear_flops(self.head, 1)


def _pairs(relations: Float[Array, "b h n n"], rows: Int[Array, "b k"]) -> Float[Array, "b h k k"]:
    """Takes the rows and the columns of some tokens of each image."""
    return jax.vmap(lambda image, ids: image[:, ids][:, :, ids])(relations, rows)


def _placed(relations: Float[Array, "b l h k k"], rows: Int[Array, "b k"], tokens: int) -> Float[Array, "b l h n n"]:
    """The inverse: relations between all tokens, 0 in the rows and columns of the others."""
    empty = jnp.zeros((*relations.shape[1:3], tokens, tokens), relations.dtype)
    return jax.vmap(lambda image, ids: empty.at[:, :, ids[:, None], ids[None, :]].set(image))(relations, rows)
