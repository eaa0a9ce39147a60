"""What the convolutional networks share: maps of features, their mean, a linear classifier."""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class ConvAux(NamedTuple):
    """What a forward pass returns beside its logits: the last map of features."""

    features: Float[Array, "b *grid c"]


class ConvNet(nnx.Module):
    """A convolutional classifier of NHWC images, or of NTHWC clips.

    Class attributes:
      mean, std: of the pixels, from 0 to 1, that its published weights were trained on, a value each a channel.
    """

    mean: ClassVar[tuple[float, ...]] = IMAGENET[0]
    std: ClassVar[tuple[float, ...]] = IMAGENET[1]

    @property
    def classifier(self) -> Any:
        """The linear layer behind the mean of the features; None without classes."""
        raise NotImplementedError

    def forward_features(self, images: Float[Array, "b *sides c"], *, train: bool = False) -> Float[Array, "b *grid d"]:
        """Images to the last map of features, behind its activation.

        Args:
          train: normalises by the statistics of the batch, and writes the running ones.

        Raises:
          UserError: the images are of an integer dtype.
        """
        raise NotImplementedError

    def forward_head(self, features: Float[Array, "b *grid d"]) -> Float[Array, "b k"]:
        """A map of features to logits in float32; to its mean without classes."""
        pooled = features.astype(jnp.float32).mean(tuple(range(1, features.ndim - 1)))
        return pooled if self.classifier is None else self.classifier(pooled)

    def __call__(
        self, images: Float[Array, "b *sides c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "b classes"], ConvAux]:
        """Classifies normalised images."""
        features = self.forward_features(images, train=train)
        return self.forward_head(features), ConvAux(features)
