"""Segmentation networks with exits: a head at each of several depths, between which tokens leave."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.dense.parts.base import Segmenter
from jaxprune.nn.site import Site


class ExitSegmenter(Segmenter):
    """Base class of segmentation networks whose tokens leave between their heads: what an image costs depends on it.

    A subclass also defines `begin` and `advance`, by which `dense.TokenEngine` runs it stage by stage.

    Attributes:
      heads: one for each of `indices`, the last at the last block; each has `flops(rows)`.
      exits: what decides which tokens leave, "confidence" or "scores" (of a scorer at the input).
    """

    heads: nnx.List[Any]
    exits: str

    def stages(self, images: Float[Array, "b h w c"]) -> Sequence[Any]:
        """What every head says; each with `num_tokens`, the number of tokens that it saw, by image."""
        raise NotImplementedError

    def segment(self, output: Any, shape: tuple[int, int]) -> Float[Array, "b H W k"]:
        """The scores of what a head says, at a size in pixels."""
        raise NotImplementedError

    def num_keep(self, stage: int) -> int:
        """For exits by scores, the number of tokens that go on after a head."""
        raise NotImplementedError

    def without_exits(self) -> "ExitSegmenter":
        """The same network, all of whose tokens go on to the last head; it shares the arrays."""
        raise NotImplementedError

    def sites_of(self, stage: int) -> Sequence[Site]:
        """The blocks between the head before and this one."""
        start = self.indices[stage - 1] + 1 if stage else 0
        return self.encoder.sites()[start : self.indices[stage] + 1]

    def counted(self, images: Float[Array, "b h w c"]) -> tuple[Float[Array, "b h w k"], Int[Array, "b s"]]:
        """The score of each class at every pixel, and the number of tokens that reach each head."""
        outputs = self.stages(images)
        num_tokens = jnp.stack([output.num_tokens for output in outputs], axis=1).astype(jnp.int32)
        return self.segment(outputs[-1], (images.shape[1], images.shape[2])), num_tokens
