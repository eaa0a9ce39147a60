"""A scorer whose network sees the images at another resolution than the classifier that it prunes."""

from flax import nnx
from jaxtyping import Array, Float

from jaxprune.ops.resize import resize
from jaxprune.scoring.parts.base import Scorer


class ResizedInputs(Scorer):
    """Resizes the images for a scorer with Pillow's bicubic filter; the patch grid stays the same.

    A ConvNet of stride 32, for example, maps an image of 32 pixels to a single value, which cannot rank patches.

    Args:
      scorer: the scorer.
      size: (height, width) to resize to.
    """

    def __init__(self, scorer: Scorer, size: tuple[int, int]):
        super().__init__(grid=scorer.grid)
        self.scorer, self.size = nnx.data(scorer), size
        self.differentiable = scorer.differentiable

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        """See `Scorer`."""
        return self.scorer(self.resized(images), key=key)

    def native_scores(self, images, *, key=None):
        return self.scorer.native_scores(self.resized(images), key=key)

    def resized(self, images):
        """The resized images."""
        return resize(images, self.size, "bicubic", antialias=True)

    def select(self, scores, num_keep):
        """See `Scorer`."""
        return self.scorer.select(scores, num_keep)

    def num_keep(self, keep_rate, num_prefix_tokens):
        """See `Scorer`."""
        return self.scorer.num_keep(keep_rate, num_prefix_tokens)
