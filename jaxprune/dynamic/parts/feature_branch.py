"""The ConvNet of Dynamic Perceiver, in the parts between which the latents read it."""

from typing import Any

from flax import nnx

from jaxprune.dynamic.parts.convnext_stage import ConvNeXtStage
from jaxprune.models.convnext import Cut
from jaxprune.models.resnet import Residual
from jaxprune.nn import BatchNorm, Conv
from jaxprune.nn.norm import LayerNorm

_PATCH = 4  # side of the patches of a ConvNeXt's stem


def resnet_branch(
    width: int, drop_paths: list[list[float]], *, bottleneck: bool, dtype: Any, rngs: nnx.Rngs
) -> tuple[nnx.List, list[Any]]:
    """Returns the stem and the stages of a ResNet, with the stochastic depth rates of their blocks."""
    common = {"dtype": dtype, "rngs": rngs}
    stem, entering, stages = nnx.List([Conv(3, width, 7, stride=2, **common), BatchNorm(width)]), width, []
    for stage, rates in enumerate(drop_paths):
        blocks = []
        for index, rate in enumerate(rates):
            stride, inner = 2 if stage and index == 0 else 1, width * 2**stage
            blocks.append(Residual(entering, inner, stride, bottleneck=bottleneck, drop_path=rate, **common))
            entering = inner * (4 if bottleneck else 1)
        stages.append(nnx.List(blocks))
    return stem, stages


def convnext_branch(width: int, drop_paths: list[list[float]], **common: Any) -> tuple[nnx.List, list[Any]]:
    """Returns the stem and the stages of a ConvNeXt, with the stochastic depth rates of their blocks."""
    common.pop("bottleneck")
    widths = [width * 2**stage for stage in range(len(drop_paths))]
    stem = nnx.List([Cut(3, width, _PATCH, **common), LayerNorm(width)])
    before = [None, *widths[:-1]]
    return stem, [
        ConvNeXtStage(old, new, rates, **common) for old, new, rates in zip(before, widths, drop_paths, strict=True)
    ]
