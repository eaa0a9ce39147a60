"""The cost of scoring the patches of an image."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxprune import flops
from jaxprune.models.convnet import ConvNet
from jaxprune.models.video_convnet import VideoConvNet
from jaxprune.nn.params import merge, split
from jaxprune.scoring import Scorer
from jaxprune.scoring.papr import PaPr
from jaxprune.scoring.parts.resized_inputs import ResizedInputs
from jaxprune.scoring.score_cam import ScoreCAM


def scorer_flops(scorer: Scorer, size: tuple[int, ...]) -> float:
    """Returns the multiply-accumulates of scoring an image: counted for a ConvNet, otherwise by the compiler.

    The backward pass through a ConvNet's classifier is negligible.

    Args:
      scorer: the scorer.
      size: (height, width) of the image, or (frames, height, width) of a clip.
    """
    if isinstance(scorer, ResizedInputs):
        return scorer_flops(scorer.scorer, scorer.size)
    if scorer.proposal is None:
        return 0.0
    if not isinstance(scorer.proposal, ConvNet):
        return flops.compiled_flops(*_program(scorer, size))
    if isinstance(scorer, PaPr) and isinstance(scorer.proposal, VideoConvNet):
        size = scorer.proposal.expected(size)
    passes = 1
    if isinstance(scorer, ScoreCAM):
        channels = scorer.proposal.classifier.kernel.shape[0]
        passes += min(scorer.top_channels or channels, channels)
    return float(passes * flops.convnet(scorer.proposal, size))


def _program(scorer: Scorer, size: tuple[int, ...]) -> tuple[Any, ...]:
    parts = split(scorer)
    arrays = {**parts.params, **parts.rest}
    images = jax.ShapeDtypeStruct((1, *size, 3), jnp.float32)
    return (lambda arrays, images: merge(parts.graph, arrays, {})(images)), arrays, images
