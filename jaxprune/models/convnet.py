"""The base of the convolutional networks: feature maps, global average pooling, a linear classifier."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.preprocessing import IMAGENET_MEAN, IMAGENET_STD


class ConvAux(NamedTuple):
    """What a forward pass returns besides the logits: the last feature map."""

    features: Float[Array, "b *grid c"]

    @property
    def assign(self) -> tuple[()]:
        """What a plan's steps do with the patches, see `HostOutput`: there are no steps."""
        return ()


class ConvNet(nnx.Module):
    """A convolutional classifier of NHWC images, or of NTHWC clips.

    Class attributes:
      mean, std: normalisation that the published weights were trained with, for pixels in [0, 1], one value per
        channel.
      classifier_parts: prefixes of the classifier's parameters.
      no_decay: patterns of parameters without weight decay, besides vectors and biases.

    Attributes:
      preprocessing: how its images are prepared, see `Preprocessing`; set by `models.create`.
    """

    preprocessing: Any
    classifier_parts: ClassVar[tuple[str, ...]] = ("fc.", "linear.", "classifier.", "head.")
    no_decay: ClassVar[tuple[str, ...]] = ()

    mean: ClassVar[tuple[float, ...]] = IMAGENET_MEAN
    std: ClassVar[tuple[float, ...]] = IMAGENET_STD

    @property
    def classifier(self) -> Any:
        """The linear layer after pooling; None without classes."""
        raise NotImplementedError

    def forward_features(self, images: Float[Array, "b *sides c"], *, train: bool = False) -> Float[Array, "b *grid d"]:
        """Computes the last feature map of images, after its activation.

        Args:
          train: normalises with batch statistics, and updates the running ones.

        Raises:
          UserError: the images are of an integer dtype.
        """
        raise NotImplementedError

    def step_grids(self, img_size: int | Sequence[int] | None = None) -> tuple[()]:
        """The grid of each step of a plan, see `Host.step_grids`: a convolutional network follows none."""
        return ()

    def parameter_layers(self, names: Iterable[str]) -> dict[str, int]:
        """The layer of each parameter for layer-wise decay: 0 for all convolutions together, 1 for the classifier."""
        return {name: int(name.startswith(self.classifier_parts)) for name in names}

    def forward_head(self, features: Float[Array, "b *grid d"]) -> Float[Array, "b k"]:
        """Maps features to logits in float32, or to pooled features without classes."""
        pooled = features.astype(jnp.float32).mean(tuple(range(1, features.ndim - 1)))
        return pooled if self.classifier is None else self.classifier(pooled)

    def __call__(
        self, images: Float[Array, "b *sides c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "b classes"], ConvAux]:
        """Classifies normalised images."""
        features = self.forward_features(images, train=train)
        return self.forward_head(features), ConvAux(features)
