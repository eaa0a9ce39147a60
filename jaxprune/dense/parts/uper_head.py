"""UPerNet's head (Xiao et al., 2018) as in mmsegmentation: a pooling pyramid above a feature pyramid."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.dense.parts.conv_module import ConvModule
from jaxprune.dense.parts.pixel_classifier import PixelClassifier
from jaxprune.ops.adaptive_average import adaptive_average
from jaxprune.ops.resize import resize

POOL_SCALES = (1, 2, 3, 6)


class UPerHead(nnx.Module):
    """Reads maps from fine to coarse, and classifies the places of the finest.

    The coarsest map is pooled to each of `pool_scales`; what comes of that goes down the pyramid by addition, and all
    levels are joined at the size of the finest. Resizing is bilinear.

    Args:
      in_features: channels of each map, the finest first.
      features: channels of every layer.
      pool_scales: sides of the pooled maps.
      dropout: see `PixelClassifier`.
    """

    def __init__(
        self,
        in_features: Sequence[int],
        num_classes: int,
        *,
        features: int = 512,
        pool_scales: Sequence[int] = POOL_SCALES,
        dropout: float = 0.1,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        conv = lambda i, size=1: ConvModule(i, features, size, dtype=dtype, rngs=rngs)
        *finer, coarsest = in_features
        self.pool_scales = tuple(pool_scales)
        self.psp_modules = nnx.List([conv(coarsest) for _ in self.pool_scales])
        self.bottleneck = conv(coarsest + len(self.pool_scales) * features, 3)
        self.lateral_convs = nnx.List([conv(channels) for channels in finer])
        self.fpn_convs = nnx.List([conv(features, 3) for _ in finer])
        self.fpn_bottleneck = conv(len(in_features) * features, 3)
        self.classifier = PixelClassifier(features, num_classes, dropout=dropout, dtype=dtype, rngs=rngs)

    def __call__(
        self, maps: Sequence[Float[Array, "b _ _ _"]], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> Float[Array, "b h w k"]:
        return self.classifier(self.join(maps, train=train), train=train, key=key)

    def join(self, maps: Sequence[Float[Array, "b _ _ _"]], *, train: bool = False) -> Float[Array, "b h w c"]:
        """The features of all levels at the size of the finest, before the classifier."""
        levels = [conv(x, train=train) for conv, x in zip(self.lateral_convs, maps[:-1], strict=True)]
        levels.append(self.bottleneck(self.pyramid(maps[-1], train=train), train=train))
        for level in reversed(range(len(levels) - 1)):
            levels[level] += _resized(levels[level + 1], levels[level])
        levels[:-1] = [conv(x, train=train) for conv, x in zip(self.fpn_convs, levels[:-1], strict=True)]
        return self.fpn_bottleneck(jnp.concatenate([_resized(x, levels[0]) for x in levels], axis=-1), train=train)

    def pooled(self, x: Float[Array, "b h w i"], *, train: bool = False) -> list[Float[Array, "b _ _ c"]]:
        """The map pooled to each scale, after its convolution."""
        scales = zip(self.psp_modules, self.pool_scales, strict=True)
        return [conv(adaptive_average(x, scale), train=train) for conv, scale in scales]

    def pyramid(self, x: Float[Array, "b h w i"], *, train: bool = False) -> Float[Array, "b h w _"]:
        """The map and all pooled ones, resized to it, joined by channels."""
        return jnp.concatenate([x, *(_resized(pooled, x) for pooled in self.pooled(x, train=train))], axis=-1)


def _resized(x: Array, like: Array) -> Array:
    return resize(x, (like.shape[1], like.shape[2]), "bilinear")
