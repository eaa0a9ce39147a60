"""The base of hierarchical networks: maps that shrink, rows that are never removed, and average pooling."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.nn import Host, Linear, Tokens
from jaxprune.nn.linear import normal_02


class Stage(nnx.Module):
    """A downsampling layer, except in the first stage, and blocks."""

    def __init__(self, downsample: Any, blocks: Sequence[Any]):
        self.downsample = nnx.data(downsample)
        self.blocks = nnx.List(blocks)


class ClassifierHead(nnx.Module):
    """The linear layer that timm calls `head.fc`, after `head.norm` where pooled features are normalised."""

    def __init__(self, dim: int, num_classes: int, *, norm: Any = None, scale: float = 1.0, rngs: nnx.Rngs):
        init: Any = lambda key, shape, dtype=jnp.float32: scale * normal_02(key, shape, dtype)
        self.norm = nnx.data(norm)
        self.fc = nnx.data(Linear(dim, num_classes, kernel_init=init, rngs=rngs) if num_classes else None)

    def normed(self, pooled: Float[Array, "b d"]) -> Float[Array, "b d"]:
        """Applies the norm, if there is one, to pooled features."""
        return pooled if self.norm is None else self.norm(pooled)

    def __call__(self, pooled: Float[Array, "b d"]) -> Float[Array, "b k"]:
        """Maps pooled features to logits, or only normalises them without classes."""
        pooled = self.normed(pooled)
        return pooled if self.fc is None else self.fc(pooled)


_FRONT = re.compile(r"(patch_embed|stem|pos_embed\w*)(\.|$)")
_DOWNSAMPLING = re.compile(r"\w+\.(\d+)\.downsample\.")


class HierarchicalHost(Host):
    """A host whose maps shrink from stage to stage; a subclass sets `depths` (blocks per stage) and `head`.

    Attributes:
      downsampling_ends: whether layer-wise decay groups a downsampling layer with the last block before it; otherwise
        with the first block after it.
    """

    num_prefix_tokens = 0
    prunes_input = False
    downsampling_ends = False
    classifier_parts = ("head.fc.",)
    depths: tuple[int, ...]
    head: ClassifierHead

    def places(self) -> list[tuple[int, int]]:
        """The (stage, index in the stage) of every block."""
        return [(stage, index) for stage, depth in enumerate(self.depths) for index in range(depth)]

    def intermediate_layers(self) -> tuple[int, ...]:
        """The last block of each stage."""
        return tuple(sum(self.depths[: stage + 1]) - 1 for stage in range(len(self.depths)))

    def parameter_layers(self, names: Iterable[str]) -> dict[str, int]:
        """The layer of each parameter for layer-wise decay: 0 embeds, block i is i + 1, then norm and head."""
        blocks = {site.path: site.layer + 1 for site in self.sites()}

        def layer_of(name: str) -> int:
            if _FRONT.match(name):
                return 0
            if match := _DOWNSAMPLING.match(name):
                return sum(self.depths[: int(match[1])]) + (0 if self.downsampling_ends else 1)
            return next((layer for path, layer in blocks.items() if name.startswith(f"{path}.")), len(blocks) + 1)

        return {name: layer_of(name) for name in names}

    @property
    def num_patches(self) -> int:
        """Number of positions on the first map."""
        return math.prod(self.sites()[0].grid)

    def forward_head(self, tokens: Tokens) -> tuple[Float[Array, "b k"], tuple[Array, ...]]:
        """Maps the mean of the last map to logits in float32."""
        return self.head(_mean(tokens)), ()

    def pool(self, tokens: Tokens) -> Float[Array, "b d"]:
        """The mean of the last map, as the classifier reads it."""
        return self.head.normed(_mean(tokens)).astype(tokens.x.dtype)


def _mean(tokens: Tokens) -> Float[Array, "b d"]:
    return tokens.x.astype(jnp.float32).mean(1)
