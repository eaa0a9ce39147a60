"""Score-CAM: feature maps weighted by the predicted class's logit on the image that they mask (Wang et al., 2020)."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.ops.resize import resize
from jaxprune.scoring.parts.base import Scorer
from jaxprune.scoring.parts.maps import activation, min_max
from jaxprune.scoring.parts.networks import logit_of, predicted


class ScoreCAM(Scorer):
    """`ReLU(Σ_c w_c A_c)`, where w is the softmax over channels of the predicted class's logit on masked images.

    This takes one forward pass per channel. They run in chunks, each on the whole batch.

    Args:
      top_channels: uses only the channels with the largest mean activation, chosen per image; 0 means all.
      chunk: channels that are processed at once.
    """

    reads = "convnet"
    needs_classes = True
    dims: ClassVar = (2,)

    def __init__(self, *, top_channels: int = 0, chunk: int = 16, **kwargs: Any):
        super().__init__(**kwargs)
        self.top_channels, self.chunk = top_channels, chunk

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        return activation(self.raw(self.prepared(images)), self.grid)

    def raw(self, images: Float[Array, "b H W c"]) -> Float[Array, "b h w"]:
        """The weighted sum before the ReLU."""
        features = self.proposal.forward_features(images).astype(jnp.float32)
        target = predicted(self.proposal.forward_head(features))
        if 0 < self.top_channels < features.shape[-1]:
            order = jnp.argsort(-features.mean((1, 2)), axis=1, stable=True)[:, : self.top_channels]
            features = jnp.take_along_axis(features, order[:, None, None, :], axis=3)
        scores = self.channel_scores(images, features, target)
        return jnp.einsum("bhwc,bc->bhw", features, jax.nn.softmax(scores, axis=1))

    def channel_scores(
        self, images: Float[Array, "b H W c"], features: Float[Array, "b h w k"], target: Int[Array, "b"]
    ) -> Float[Array, "b k"]:
        """The target's logit on the image masked by each channel."""
        b, h, w, channels = features.shape
        chunk = min(self.chunk, channels)
        size = (images.shape[1], images.shape[2])
        padded = jnp.pad(features, ((0, 0), (0, 0), (0, 0), (0, -channels % chunk)))

        def score(maps: Float[Array, "b h w m"]) -> Float[Array, "b m"]:
            masks = jnp.moveaxis(resize(maps, size, "bilinear", align_corners=True), -1, 1)
            masks = min_max(masks.reshape(-1, *size), 1e-8).reshape(masks.shape)
            # The batch axis stays first: folded in after the channels, it would move images between devices.
            masked = images[:, None] * masks[..., None].astype(images.dtype)
            of_masked = self.proposal.forward_features(masked.reshape(-1, *images.shape[1:]))
            return logit_of(self.proposal.forward_head(of_masked), jnp.repeat(target, chunk)).reshape(b, chunk)

        chunks = jnp.moveaxis(padded.reshape(b, h, w, -1, chunk), 3, 0)
        return jnp.moveaxis(jax.lax.map(score, chunks), 0, 1).reshape(b, -1)[:, :channels]
