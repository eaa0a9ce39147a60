"""PaPr: patch significance from a lightweight ConvNet's last features, without training (Mahmud et al., 2024)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.ops.resize import resize_3d
from jaxprune.scoring.parts.base import Scorer, require_classes
from jaxprune.scoring.parts.maps import to_grid
from jaxprune.scoring.parts.networks import class_rows, feature_map


class PaPr(Scorer):
    """The patch significance map: features averaged over channels, bicubic to the patch grid.

    The classifier is not used, so the map highlights whatever is salient and not a single class. A keep rate z keeps
    `int(n·z)` patches, where n includes the prefix tokens, as published for the CLS token.

    For clips (a 3-D grid) the map is resized trilinearly, and an X3D or SlowOnly sees clips resized as in the published
    code (`VideoConvNet.expected`).

    Args:
      align_corners: resizes with aligned corners, as all published code does; the paper's pseudo-code does not.
      convert: whether pixels that are normalised for the pruned network are converted to the proposal's statistics;
        False: the proposal reads the pruned network's input as it is, as in all published code.
      with_fc: weights the channels by the classifier's row for the predicted class instead of averaging them (the
        ablation in Tab. IV).
    """

    reads = "any"
    differentiable = False

    def __init__(self, *, align_corners: bool = True, convert: bool = True, with_fc: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        if with_fc:
            require_classes(self.proposal, "PaPr with the classifier's weights")
        self.align_corners, self.convert, self.with_fc = align_corners, convert, with_fc

    def prepared(self, images: Float[Array, "b *sides c"]) -> Float[Array, "b *sides c"]:
        """See `Scorer.prepared`."""
        return super().prepared(images) if self.convert else images

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        features = feature_map(self.proposal, self._seen(images))
        # The proposal network is frozen.
        return jax.lax.stop_gradient(self.significance(features))

    def native_scores(self, images, *, key=None) -> tuple[Float[Array, "b p"], tuple[int, ...]]:
        maps = jax.lax.stop_gradient(self._maps(feature_map(self.proposal, self._seen(images))))
        return maps.reshape(maps.shape[0], -1), maps.shape[1:]

    def _seen(self, images: Float[Array, "b *sides c"]) -> Float[Array, "b *seen c"]:
        """The images as the proposal network sees them; clips at the size that published code resizes them to."""
        images = self.prepared(images)
        if not hasattr(self.proposal, "expected") or images.ndim != 5:
            return images
        return resize_3d(images, self.proposal.expected(images.shape[1:-1]), align_corners=True)

    def significance(self, features: Float[Array, "b ... c"]) -> Float[Array, "b p"]:
        """The significance of every patch from a feature map of `proposal`, (h, w) or of a video (t, h, w)."""
        return to_grid(self._maps(features), self.grid, align_corners=self.align_corners)

    def _maps(self, features: Float[Array, "b ... c"]) -> Float[Array, "b ..."]:
        features = features.astype(jnp.float32)
        if self.with_fc:
            return jnp.einsum("b...c,bc->b...", features, class_rows(self.proposal, features))
        return features.mean(-1)

    def num_keep(self, keep_rate: float, num_prefix_tokens: int) -> int:
        return min(int((self.num_patches + num_prefix_tokens) * keep_rate), self.num_patches)
