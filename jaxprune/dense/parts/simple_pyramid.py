"""ViTDet's simple feature pyramid (Li et al., 2022): maps of several scales from the last map of a ViT."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.dense.parts.conv_norm import ConvNorm
from jaxprune.dense.parts.published import transposed, transposed_back
from jaxprune.dense.parts.vit_pyramid import Upsample
from jaxprune.nn import LayerNorm
from jaxprune.nn.tensor_rules import Rule, convolution, convolution_back

SCALES = ("quadruple", "double", "single", "half")


class _Level(nnx.Module):
    """One scale: up-sampling or pooling, then a 1×1 and a 3×3 convolution, each with a norm."""

    def __init__(self, dim: int, features: int, scale: str, *, dtype: Any = None, rngs: nnx.Rngs):
        common: Any = {"dtype": dtype, "rngs": rngs}
        self.scale, width = scale, dim
        self.first: Any = nnx.data(None)
        self.norm: Any = nnx.data(None)
        self.second: Any = nnx.data(None)
        if scale in ("quadruple", "double"):
            self.first, width = Upsample(dim, dim // 2, **common), dim // 2
        if scale == "quadruple":
            self.norm, self.second, width = LayerNorm(dim // 2), Upsample(dim // 2, dim // 4, **common), dim // 4
        self.lateral = ConvNorm(width, features, 1, uniform=True, **common)
        self.output = ConvNorm(features, features, 3, uniform=True, **common)

    def __call__(self, x: Float[Array, "b h w d"]) -> Float[Array, "b _ _ c"]:
        if self.first is not None:
            x = self.first(x)
        if self.second is not None:
            x = self.second(jax.nn.gelu(self.norm(x), approximate=False))
        if self.scale == "half":
            places = (1, 2, 2, 1)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, places, places, "VALID")
        return self.output(self.lateral(x))


class SimplePyramid(nnx.Module):
    """Maps at 4, 2, 1 and 1/2 times the sides of the ViT's map, and every second place of the last.

    Args:
      dim: channels of the ViT's map.
      features: channels of the pyramid.
    """

    def __init__(self, dim: int, features: int = 256, *, dtype: Any = None, rngs: nnx.Rngs):
        self.levels = nnx.List([_Level(dim, features, scale, dtype=dtype, rngs=rngs) for scale in SCALES])

    def __call__(self, x: Float[Array, "b h w d"]) -> list[Float[Array, "b _ _ c"]]:
        maps = [level(x) for level in self.levels]
        return [*maps, maps[-1][:, ::2, ::2]]


def strides(pyramid: Sequence[Float[Array, "b _ _ c"]], height: int) -> list[float]:
    """The pixels between two places of each map, doubling from level to level.

    A coarse map whose sides were rounded keeps its stride: at 112 pixels, 3 rows are 32 pixels apart, as published.

    Args:
      height: of the padded images, in pixels.
    """
    finest = height / pyramid[0].shape[1]
    return [finest * 2**level for level in range(len(pyramid))]


# The published names of a level's parts: number in a sequence, and layer.
_PARTS = {
    "quadruple": {"0": "first", "1": "norm", "3": "second", "4": "lateral", "5": "output"},
    "double": {"0": "first", "1": "lateral", "2": "output"},
    "single": {"0": "lateral", "1": "output"},
    "half": {"1": "lateral", "2": "output"},
}


def pyramid_rules(published: str, path: str, finest: int) -> tuple[Rule, ...]:
    """Names and layouts of detectron2's SimpleFeaturePyramid.

    Args:
      finest: log2 of the stride of the finest map, by which levels are numbered.
    """
    rules: list[Rule] = []
    for level, scale in enumerate(SCALES):
        for number, part in _PARTS[scale].items():
            torch, place = f"{published}simfp_{finest + level}.{number}", f"{path}levels.{level}.{part}"
            if part in ("lateral", "output"):
                rules += [
                    Rule(f"{torch}.norm.weight", f"{place}.norm.scale"),
                    Rule(f"{torch}.norm.bias", f"{place}.norm.bias"),
                    Rule(f"{torch}.weight", f"{place}.conv.kernel", convolution, convolution_back),
                ]
            elif part == "norm":
                rules += [Rule(f"{torch}.weight", f"{place}.scale"), Rule(f"{torch}.bias", f"{place}.bias")]
            else:
                rules += [
                    Rule(f"{torch}.weight", f"{place}.kernel", transposed, transposed_back),
                    Rule(f"{torch}.bias", f"{place}.bias"),
                ]
    return tuple(rules)
