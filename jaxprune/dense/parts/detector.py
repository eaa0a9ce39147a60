"""The Detector protocol: what a network that finds objects takes and returns."""

from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxprune.dense.parts.base import DenseNetwork
from jaxprune.errors import UserError
from jaxprune.nn.optional_key import split_key
from jaxprune.ops.instance_masks import Outlines


class Objects(NamedTuple):
    """The objects of a batch of images, padded to the same number.

    Attributes:
      boxes: x0, y0, x1, y1 in pixels of the padded images.
      classes: from 0.
      valid: which objects exist. Boxes without area are left out in any case.
      masks: polygons (`ops.instance_masks.Outlines` of a batch), or bitmaps of the padded images, bool (b, m, h, w);
        None trains boxes only.
    """

    boxes: Float[Array, "b m 4"]
    classes: Int[Array, "b m"]
    valid: Bool[Array, "b m"]
    masks: Outlines | Bool[Array, "b m h w"] | None = None


class Detections(NamedTuple):
    """What was found in a batch of images, by falling score.

    Attributes:
      boxes: x0, y0, x1, y1 in pixels of the padded images.
      scores: from 0 to 1.
      classes: from 0.
      masks: probabilities inside the box, of the predicted class; `ops.instance_masks.paste` puts them into images.
      valid: which places are taken.
    """

    boxes: Float[Array, "b k 4"]
    scores: Float[Array, "b k"]
    classes: Int[Array, "b k"]
    masks: Float[Array, "b k s s"] | None
    valid: Bool[Array, "b k"]


class Sampling(NamedTuple):
    """The random numbers of a training step: of all candidates of a kind, those with the smallest are drawn.

    Attributes:
      anchors: of every anchor, the finest level first.
      proposals: of every place for a proposal, followed by those for objects.
    """

    anchors: Float[Array, "b n"]
    proposals: Float[Array, "b p"]


class DetectionLoss(NamedTuple):
    """What a loss consists of.

    Attributes:
      losses: {detectron2's name: part of the loss}.
      details: what the parts were computed from; fields that nobody reads cost nothing under `jit`.
    """

    losses: dict[str, Float[Array, ""]]
    details: dict[str, Any]


class Detector(DenseNetwork):
    """Base class of networks that find objects and their masks."""

    published_encoder = "backbone.net."

    def __call__(
        self,
        images: Float[Array, "b h w c"],
        sizes: Float[Array, "b 2"] | None = None,
        *,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> Detections:
        """Finds the objects of normalised images.

        Args:
          sizes: (height, width) of each image without its padding, which is at the bottom and right; the whole image by
            default.
        """
        raise NotImplementedError

    def maps(
        self, images: Float[Array, "b h w c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> list[Float[Array, "b _ _ c"]]:
        """What the heads read of the images: everything that the encoder computes."""
        raise NotImplementedError

    def loss(
        self,
        images: Float[Array, "b h w c"],
        objects: Objects,
        *,
        sizes: Float[Array, "b 2"] | None = None,
        sampling: Sampling | None = None,
        train: bool = True,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, ""], DetectionLoss]:
        """The sum of all losses.

        Args:
          sizes: see `__call__`.
          sampling: random numbers instead of drawn ones; `key` is then only needed for DropPath.

        Raises:
          UserError: there is neither a key nor a sampling.
        """
        keys = split_key(key)
        if sampling is None and key is None:
            raise UserError("Training samples anchors and boxes: pass key=jax.random.key(…), or sampling=.")
        maps = self.maps(images, train=train, key=keys[0])
        return self.loss_of(maps, images, objects, sizes=sizes, sampling=sampling, key=keys[1], train=train)

    def loss_of(
        self,
        maps: list[Float[Array, "b _ _ c"]],
        images: Float[Array, "b h w c"],
        objects: Objects,
        *,
        sizes: Float[Array, "b 2"] | None = None,
        sampling: Sampling | None = None,
        train: bool = True,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, ""], DetectionLoss]:
        """The loss of what `maps` returned, as when a frozen encoder computes as in a test; see `loss`."""
        raise NotImplementedError
