"""What a stage of DVT takes from the one before: its features, and its relations (Wang et al., 2021)."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.dynamic.parts.finer_grid import finer_matrix, finer_relations, finer_tokens
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.linear import normal_02
from jaxprune.nn.mlp import Mlp
from jaxprune.nn.norm import LayerNorm
from jaxprune.nn.tensor_rules import Rule, linear, linear_back, pointwise, pointwise_back


class FeatureReuse(nnx.Module):
    """Context for one block: an MLP of the last tokens of the coarser stage, resized; zeros for the class token.

    Args:
      hidden, width: of the MLP; the context has `width` channels.
      sides: of the coarser and of the finer grid.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        width: int,
        sides: tuple[int, int],
        *,
        eps: float,
        kernel_init: Any = normal_02,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.sides = sides
        self.norm = LayerNorm(dim, eps=eps)
        self.mlp = Mlp(dim, hidden, out=width, kernel_init=kernel_init, dtype=dtype, rngs=rngs)

    def __call__(self, features: Float[Array, "b n d"]) -> Float[Array, "b m e"]:
        """The context of all tokens of the finer stage."""
        context = self.mlp(self.norm(features[:, 1:]))
        padded = jnp.pad(context, ((0, 0), (1, 0), (0, 0)))
        return finer_tokens(padded, finer_matrix(*self.sides))

    def flops(self) -> int:
        """Multiply-accumulates for one image."""
        old, new = self.sides
        width = self.mlp.fc2.kernel.shape[1]
        patches = old * old
        return (
            linear_flops(self.mlp.fc1, patches) + linear_flops(self.mlp.fc2, patches) + resize_flops(old, new) * width
        )


class RelationReuse(nnx.Module):
    """Attention logits for all blocks of a stage: an MLP across the blocks and heads of the coarser one, resized.

    Args:
      sides: of the coarser and of the finer grid.
    """

    def __init__(
        self,
        depth: int,
        heads: int,
        sides: tuple[int, int],
        *,
        kernel_init: Any = normal_02,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.sides, channels = sides, depth * heads
        self.mlp = Mlp(channels, 3 * channels, kernel_init=kernel_init, dtype=dtype, rngs=rngs)

    def __call__(self, relations: Float[Array, "b l h n n"]) -> Float[Array, "b l h m m"]:
        """The logits that every block adds to its own."""
        b, depth, heads, n, _ = relations.shape
        last = jnp.moveaxis(relations.reshape(b, depth * heads, n, n), 1, -1)
        mixed = jnp.moveaxis(self.mlp(last), -1, 1).reshape(b, depth, heads, n, n)
        return finer_relations(mixed, finer_matrix(*self.sides))

    def flops(self) -> int:
        """Multiply-accumulates for one image."""
        old, new = self.sides
        pairs, channels = (old * old + 1) ** 2, self.mlp.fc2.kernel.shape[1]
        products = linear_flops(self.mlp.fc1, pairs) + linear_flops(self.mlp.fc2, pairs)
        return products + resize_flops(old, new) * channels * (old * old + new * new + 2)


def resize_flops(old: int, new: int) -> int:
    """Multiply-accumulates of the two products that resize one channel of a square grid.

    >>> resize_flops(2, 3)
    30
    """
    return new * old * (old + new)


# The names of the published files, with their spelling.
RULES = (
    *(
        Rule(f"{{any}}.feature_resuse_mlp.0.{published}", f"{{any}}.feature_reuse.norm.{name}")
        for published, name in (("weight", "scale"), ("bias", "bias"))
    ),
    Rule("{any}.feature_resuse_mlp.1.fc1.weight", "{any}.feature_reuse.mlp.fc1.kernel", linear, linear_back),
    Rule("{any}.feature_resuse_mlp.1.fc2.weight", "{any}.feature_reuse.mlp.fc2.kernel", linear, linear_back),
    Rule("{any}.feature_resuse_mlp.1.fc1.bias", "{any}.feature_reuse.mlp.fc1.bias"),
    Rule("{any}.feature_resuse_mlp.1.fc2.bias", "{any}.feature_reuse.mlp.fc2.bias"),
    Rule("relation_reuse_conv.0.weight", "relation_reuse.mlp.fc1.kernel", pointwise, pointwise_back),
    Rule("relation_reuse_conv.2.weight", "relation_reuse.mlp.fc2.kernel", pointwise, pointwise_back),
    Rule("relation_reuse_conv.0.bias", "relation_reuse.mlp.fc1.bias"),
    Rule("relation_reuse_conv.2.bias", "relation_reuse.mlp.fc2.bias"),
)
