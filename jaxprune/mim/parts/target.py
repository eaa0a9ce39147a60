"""Prediction targets of every patch: the Target protocol, and pixels, plain or normalised (MAE)."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.ops.patches import normalize_patches, patchify


class Target:
    """Computes the prediction target of every patch from images.

    A subclass is a frozen dataclass of Python values, or an `nnx.Module` if it has arrays, such as a teacher's.

    Attributes:
      size: values per patch, the width of a prediction.
      name: name for reports and messages.
      picture_note: for reports: what of the pictures of a target that is not plain pixels is predicted.
    """

    size: int
    name: str
    picture_note: str = ""

    def __call__(self, images: Float[Array, "b H W c"]) -> Float[Array, "b p q"]:
        """The target of every patch, in float32."""
        raise NotImplementedError

    def to_pixels(self, pred: Float[Array, "b p q"], images: Float[Array, "b H W c"]) -> Float[Array, "b p v"]:
        """Converts a prediction to pixels in `patchify`'s order, for pictures.

        Args:
          images: the predicted images; a target that discards information, such as the mean, takes it from them.
        """
        raise NotImplementedError

    def mean_colour(self, images: Float[Array, "b H W c"]) -> Float[Array, "b p q"] | None:
        """A baseline: the target predicted from each patch's mean colour alone; None where that makes no sense."""
        return None


@dataclasses.dataclass(frozen=True)
class Pixels(Target):
    """The pixels of every patch.

    Args:
      patch_size: (height, width) of a patch.
      in_chans: channels of the images.
    """

    patch_size: tuple[int, int]
    in_chans: int = 3
    name = "pixels"

    @property
    def size(self) -> int:
        height, width = self.patch_size
        return height * width * self.in_chans

    def __call__(self, images: Float[Array, "b H W c"]) -> Float[Array, "b p q"]:
        return patchify(images.astype(jnp.float32), self.patch_size)

    def to_pixels(self, pred: Float[Array, "b p q"], images: Float[Array, "b H W c"]) -> Float[Array, "b p q"]:
        return pred

    def mean_colour(self, images: Float[Array, "b H W c"]) -> Float[Array, "b p q"]:
        target = self(images)
        b, p, q = target.shape
        pixels = target.reshape(b, p, -1, self.in_chans)
        return jnp.broadcast_to(pixels.mean(2, keepdims=True), pixels.shape).reshape(b, p, q)


@dataclasses.dataclass(frozen=True)
class NormalizedPixels(Pixels):
    """The pixels of every patch, normalised to mean 0 and variance 1 within the patch (MAE's `norm_pix_loss`)."""

    name = "normalised pixels"
    picture_note = (
        "Only the structure inside a patch is predicted: its mean and contrast are those of the original, so even an "
        "untrained network draws the colours. What was learned is the difference from the mean colours."
    )

    def __call__(self, images: Float[Array, "b H W c"]) -> Float[Array, "b p q"]:
        return normalize_patches(super().__call__(images))[0]

    def to_pixels(self, pred: Float[Array, "b p q"], images: Float[Array, "b H W c"]) -> Float[Array, "b p q"]:
        # The prediction contains neither the mean nor the contrast of a patch: both are taken from the image.
        _, mean, std = normalize_patches(patchify(images, self.patch_size))
        return pred * std + mean
