"""What reads the maps of a host at several depths, and the Segmenter protocol: heads that classify every pixel."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.losses.pixel_classes import pixel_accuracy, pixel_cross_entropy
from jaxprune.nn import Host
from jaxprune.nn.around_host import AroundHost
from jaxprune.nn.images import require_float
from jaxprune.nn.optional_key import split_key
from jaxprune.nn.params import copied
from jaxprune.nn.tensor_rules import Rule
from jaxprune.ops.label_maps import IGNORED
from jaxprune.ops.resize import resize


class SegmentationLoss(NamedTuple):
    """What a loss consists of.

    Attributes:
      losses: {name: part of the loss, already weighted}.
      accuracy: {name: the share of all pixels that a head predicts right}.
    """

    losses: dict[str, Float[Array, ""]]
    accuracy: dict[str, Float[Array, ""]]


class DenseNetwork(AroundHost):
    """Base class of networks that read the maps of a host: its maps, names and excluded arguments.

    The host gives maps that are dense, whatever plan it follows: `reduction.apply` reduces it, and what reads them
    stays as it is.

    Args:
      encoder: any host with maps.
      num_classes: classes of pixels or objects.
      indices: which of the host's intermediates are read, from the first on in whatever order they are named.

    Attributes:
      final_norm: whether the last map is read after the host's final norm; the host has none otherwise.
      published_rules: names and layouts of everything besides the host.
      published_encoder: prefix of the host's tensors in published files.
      beside_encoder: prefixes of parts that published files have within the host.
      excludes: arguments of the host that are none of the network's.

    Raises:
      UserError: the host has no such intermediates, or one is named twice.
    """

    final_norm: ClassVar[bool] = False
    published_rules: ClassVar[tuple[Rule, ...]] = ()
    published_encoder: ClassVar[str] = "backbone."
    beside_encoder: ClassVar[tuple[str, ...]] = ()
    excludes: ClassVar[frozenset[str]] = frozenset({"num_classes", "global_pool", "head_init_scale", "fc_norm"})

    def __init__(self, encoder: Host, num_classes: int, indices: Sequence[int]):
        count = len(encoder.intermediate_layers())
        if not all(-count <= index < count for index in indices):
            raise UserError(
                f"indices {tuple(indices)}: the encoder has {count} maps, from 0 to {count - 1}: choose some."
            )
        places = [index % count for index in indices]
        if len(set(places)) < len(places):
            raise UserError(
                f"indices {tuple(indices)} name a map twice, and each is read once: use {tuple(sorted(set(places)))}."
            )
        self.encoder = encoder if self.final_norm else without_norm(encoder)
        self.num_classes = num_classes
        self.indices = tuple(sorted(indices, key=lambda index: index % count))  # as the host returns the maps
        self.preprocessing: Any = getattr(encoder, "preprocessing", None)

    def features(
        self, images: Float[Array, "b h w c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> list[Float[Array, "b _ _ _"]]:
        """The maps that the head reads, dense under any plan.

        Raises:
          UserError: the images are of an integer dtype.
        """
        require_float(images)
        return self.encoder.forward_intermediates(
            images,
            self.indices,
            norm=self.final_norm,
            stop_early=True,
            intermediates_only=True,
            train=train,
            key=key,
        )


class Segmenter(DenseNetwork):
    """Base class of networks that classify every pixel of an image; a subclass defines `decode`."""

    def decode(
        self, maps: Sequence[Float[Array, "b _ _ _"]], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> dict[str, Float[Array, "b _ _ k"]]:
        """The logits of each head at its own size, the main one first; auxiliary heads in training only."""
        raise NotImplementedError

    def head_logits(
        self, maps: Sequence[Float[Array, "b _ _ _"]], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> Any:
        """What `loss_of` reads, from maps of the encoder: the logits of `decode`."""
        return self.decode(maps, train=train, key=key)

    def of_maps(self, maps: Sequence[Float[Array, "b _ _ _"]], shape: tuple[int, int]) -> Float[Array, "b h w k"]:
        """The logits of every pixel of images of a size, from maps of the encoder."""
        return resize(next(iter(self.decode(maps).values())), shape, "bilinear")

    def weight(self, name: str) -> float:
        """The weight of a head's loss."""
        return 1.0

    def __call__(
        self, images: Float[Array, "b h w c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> Float[Array, "b h w k"]:
        """Returns the logits of every pixel.

        Args:
          train: uses statistics of the batch, dropout and reducers' training form; then `key` is needed.

        Raises:
          UserError: the images are of an integer dtype.
        """
        keys = split_key(key)
        logits = self.decode(self.features(images, train=train, key=keys[0]), train=train, key=keys[1])
        return upsampled(next(iter(logits.values())), images)

    def loss(
        self,
        images: Float[Array, "b h w c"],
        labels: Int[Array, "b h w"],
        *,
        ignored: int = IGNORED,
        valid_only: bool = False,
        train: bool = True,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, ""], SegmentationLoss]:
        """The weighted sum of the heads' cross-entropies at the size of the labels.

        Args:
          ignored, valid_only: see `losses.pixel_classes.pixel_cross_entropy`.
        """
        keys = split_key(key)
        logits = self.decode(self.features(images, train=train, key=keys[0]), train=train, key=keys[1])
        return self.loss_of(logits, labels, ignored=ignored, valid_only=valid_only)

    def loss_of(
        self,
        logits: dict[str, Float[Array, "b _ _ k"]],
        labels: Int[Array, "b h w"],
        *,
        ignored: int = IGNORED,
        valid_only: bool = False,
    ) -> tuple[Float[Array, ""], SegmentationLoss]:
        """The loss of logits that `decode` returned; see `loss`."""
        maps = {name: resize(part, (labels.shape[1], labels.shape[2]), "bilinear") for name, part in logits.items()}
        losses = {
            name: self.weight(name) * pixel_cross_entropy(part, labels, ignored=ignored, valid_only=valid_only)
            for name, part in maps.items()
        }
        accuracy = {name: pixel_accuracy(part, labels, ignored=ignored) for name, part in maps.items()}
        return jnp.stack(list(losses.values())).sum(), SegmentationLoss(losses, accuracy)


def upsampled(logits: Float[Array, "b _ _ k"], images: Float[Array, "b h w c"]) -> Float[Array, "b h w k"]:
    """Maps at the size of images, bilinear."""
    return resize(logits, (images.shape[1], images.shape[2]), "bilinear")


def without_norm(encoder: Host) -> Host:
    """Returns a ViT that is read before the norm after the last block without it; it shares its arrays."""
    encoder = copied(encoder)
    for name in ("norm", "fc_norm"):
        if isinstance(getattr(encoder, name, None), nnx.Module):
            setattr(encoder, name, nnx.data(None))
    return encoder


def map_features(encoder: Host, indices: Sequence[int]) -> list[int]:
    """The channels of the host's intermediates."""
    sites, ends = encoder.sites(), encoder.intermediate_layers()
    return [sites[ends[index]].embed_dim for index in indices]


def map_grids(encoder: Host, indices: Sequence[int]) -> list[tuple[int, ...]]:
    """The grids of the host's intermediates."""
    sites, ends = encoder.sites(), encoder.intermediate_layers()
    return [sites[ends[index]].grid for index in indices]
