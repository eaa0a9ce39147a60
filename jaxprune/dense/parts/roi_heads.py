"""The heads of boxes: classes and finer boxes (Girshick, 2015), and masks (He et al., 2017), as in ViTDet."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxprune.dense.parts.conv_norm import ConvNorm
from jaxprune.dense.parts.vit_pyramid import Upsample
from jaxprune.nn import Conv, Linear
from jaxprune.ops import boxes as box_ops
from jaxprune.ops.box_matching import drawn_first, match, sample
from jaxprune.ops.nms import nms

POSITIVE_FRACTION = 0.25
BOX_BINS, MASK_BINS = 7, 14


class SampledBoxes(NamedTuple):
    """The boxes that training reads: those with an object first, then background.

    Attributes:
      ids: numbers among proposals and objects.
      boxes: x0, y0, x1, y1.
      objects: the object that each box stands for.
      classes: its class, or the number of classes for background.
      valid: which places are taken.
    """

    ids: Int[Array, "*b r"]
    boxes: Float[Array, "*b r 4"]
    objects: Int[Array, "*b r"]
    classes: Int[Array, "*b r"]
    valid: Bool[Array, "*b r"]


def sampled_boxes(
    proposals: Float[Array, "p 4"],
    proposed: Bool[Array, "p"],
    boxes: Float[Array, "m 4"],
    classes: Int[Array, "m"],
    valid: Bool[Array, "m"],
    keys: Float[Array, "o"],
    *,
    num: int,
    overlap: float,
    num_classes: int,
) -> SampledBoxes:
    """Draws boxes among the proposals and the objects of one image.

    Args:
      proposals: boxes, x0, y0, x1, y1; those that are not `proposed` are none.
      boxes, classes: of the objects; those that are not `valid` are none.
      keys: a random number for each proposal and object; the smallest are drawn.
      num: number of boxes to draw.
      overlap: intersection over union from which a box stands for an object.
      num_classes: the class of the background.
    """
    candidates = jnp.concatenate([proposals, boxes])
    matches = match(box_ops.iou(boxes, candidates), valid, low=overlap, high=overlap)
    labels = jnp.where(jnp.concatenate([proposed, valid]), matches.labels, -1)
    ids, valid_places = drawn_first(sample(labels, keys, num, POSITIVE_FRACTION), keys, num)
    objects = matches.objects[ids]
    positive = valid_places & (labels[ids] == 1)
    return SampledBoxes(ids, candidates[ids], objects, jnp.where(positive, classes[objects], num_classes), valid_places)


def relabelled(
    sampled: SampledBoxes,
    boxes: Float[Array, "r 4"],
    objects: Float[Array, "m 4"],
    classes: Int[Array, "m"],
    valid: Bool[Array, "m"],
    *,
    overlap: float,
    num_classes: int,
) -> SampledBoxes:
    """The same places of one image with other boxes, and with what these stand for; empty boxes are left out.

    Args:
      sampled: the places.
      boxes: their boxes, x0, y0, x1, y1.
      objects, classes, valid, overlap, num_classes: see `sampled_boxes`.
    """
    matches = match(box_ops.iou(objects, boxes), valid, low=overlap, high=overlap)
    labels = jnp.where(matches.labels == 1, classes[matches.objects], num_classes)
    return SampledBoxes(sampled.ids, boxes, matches.objects, labels, sampled.valid & box_ops.nonempty(boxes))


class BoxHead(nnx.Module):
    """Four 3×3 convolutions with norm and ReLU, a hidden layer with ReLU, and the layers of logits and offsets.

    Args:
      features: channels of the map.
      hidden: width of the hidden layer.
      num_classes: without background.
      class_agnostic: one box for all classes, as in cascades.
      weights: factors of offsets.
    """

    def __init__(
        self,
        features: int,
        num_classes: int,
        *,
        hidden: int = 1024,
        num_convs: int = 4,
        class_agnostic: bool = False,
        weights: tuple[float, ...] = box_ops.BOX_WEIGHTS,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        common: Any = {"dtype": dtype, "rngs": rngs}
        self.convs = nnx.List([ConvNorm(features, features, 3, **common) for _ in range(num_convs)])
        inputs = features * BOX_BINS**2
        uniform = jax.nn.initializers.variance_scaling(1.0, "fan_in", "uniform")
        self.fc = Linear(inputs, hidden, kernel_init=uniform, **common)
        normal = lambda deviation: jax.nn.initializers.normal(deviation)
        self.classifier = Linear(hidden, num_classes + 1, kernel_init=normal(0.01), **common)
        boxes = 1 if class_agnostic else num_classes
        self.offsets = Linear(hidden, 4 * boxes, kernel_init=normal(0.001), **common)
        self.num_classes, self.class_agnostic, self.weights = num_classes, class_agnostic, tuple(weights)

    def __call__(self, x: Float[Array, "n s s c"]) -> tuple[Float[Array, "n k"], Float[Array, "n d"]]:
        """Returns the logits of the classes and background, and the offsets, in float32."""
        for conv in self.convs:
            x = jax.nn.relu(conv(x))
        # Channels first, as the published layer reads them.
        x = jax.nn.relu(self.fc(jnp.moveaxis(x, -1, 1).reshape(len(x), -1)))
        return self.classifier(x).astype(jnp.float32), self.offsets(x).astype(jnp.float32)

    def losses(
        self,
        logits: Float[Array, "n k"],
        offsets: Float[Array, "n d"],
        sampled: SampledBoxes,
        boxes: Float[Array, "n 4"],
    ) -> dict[str, Float[Array, ""]]:
        """Cross-entropy and L1 distance of offsets, both divided by the number of boxes, background included.

        Args:
          sampled: of all images, flattened.
          boxes: the box of the object that each stands for.
        """
        count = jnp.maximum(sampled.valid.sum(), 1)
        entropy = -jnp.take_along_axis(jax.nn.log_softmax(logits), sampled.classes[:, None], axis=1)[:, 0]
        positive = sampled.valid & (sampled.classes < self.num_classes)
        parts = offsets.reshape(len(offsets), -1, 4)
        label = jnp.zeros_like(sampled.classes) if self.class_agnostic else jnp.where(positive, sampled.classes, 0)
        predicted = jnp.take_along_axis(parts, label[:, None, None], axis=1)[:, 0]
        unit = jnp.array([0.0, 0.0, 1.0, 1.0])[None]
        start, targets = (jnp.where(positive[:, None], part, unit) for part in (sampled.boxes, boxes))
        l1_distance = jnp.abs(predicted - box_ops.encode(start, targets, self.weights)).sum(-1)
        return {
            "loss_cls": (entropy * sampled.valid).sum() / count,
            "loss_box_reg": jnp.where(positive, l1_distance, 0.0).sum() / count,
        }

    def boxes(self, offsets: Float[Array, "n d"], start: Float[Array, "n 4"]) -> Float[Array, "n d"]:
        """The boxes that offsets lead to, of every class side by side."""
        return box_ops.decode(start, offsets, self.weights)


class MaskHead(nnx.Module):
    """Four 3×3 convolutions with norm and ReLU, a transposed one with ReLU, and a mask for every class."""

    def __init__(self, features: int, num_classes: int, *, num_convs: int = 4, dtype: Any = None, rngs: nnx.Rngs):
        common: Any = {"dtype": dtype, "rngs": rngs}
        self.convs = nnx.List([ConvNorm(features, features, 3, **common) for _ in range(num_convs)])
        self.deconv = Upsample(features, features, **common)
        scale = (2 / (4 * features)) ** 0.5
        self.deconv.kernel[...] = scale * jax.random.normal(rngs.params(), self.deconv.kernel.shape)
        self.deconv.bias[...] = jnp.zeros(self.deconv.bias.shape)
        self.predictor = Conv(features, num_classes, 1, use_bias=True, **common)
        self.predictor.kernel[...] = 0.001 * jax.random.normal(rngs.params(), self.predictor.kernel.shape)

    def __call__(self, x: Float[Array, "n s s c"]) -> Float[Array, "n t t k"]:
        """Returns the logits of every class's mask, in float32."""
        for conv in self.convs:
            x = jax.nn.relu(conv(x))
        return self.predictor(jax.nn.relu(self.deconv(x))).astype(jnp.float32)


def of_class(logits: Float[Array, "n t t k"], classes: Int[Array, "n"]) -> Float[Array, "n t t"]:
    """The mask of each box's class."""
    return jnp.take_along_axis(logits, classes[:, None, None, None], axis=3)[..., 0]


def mask_loss(
    logits: Float[Array, "n t t"], targets: Bool[Array, "n t t"], positive: Bool[Array, "n"]
) -> Float[Array, ""]:
    """Binary cross-entropy, the mean over all pixels of the positive boxes; 0 without any."""
    entropy = jnp.logaddexp(0.0, logits) - targets * logits
    pixels = jnp.maximum(positive.sum(), 1) * logits.shape[1] * logits.shape[2]
    return (entropy * positive[:, None, None]).sum() / pixels


def detections(
    boxes: Float[Array, "p d"],
    probabilities: Float[Array, "p k"],
    valid: Bool[Array, "p"],
    size: Float[Array, "2"],
    *,
    score: float,
    overlap: float,
    num: int,
) -> tuple[Float[Array, "n 4"], Float[Array, "n"], Int[Array, "n"], Int[Array, "n"], Bool[Array, "n"]]:
    """The final boxes of one image: every class of every proposal competes, and only classes suppress their own.

    Args:
      boxes: those of every class side by side, or one for all.
      probabilities: of the classes and, last, background.
      size: (height, width) of the image, to which boxes are clipped.
      score: probabilities up to here are left out.
      overlap: see `ops.nms.nms`.

    Returns:
      (boxes, scores, classes, numbers of the proposals, which places are taken), by falling score.
    """
    classes = probabilities.shape[1] - 1
    places = jnp.broadcast_to(boxes.reshape(len(boxes), -1, 4), (len(boxes), classes, 4)).reshape(-1, 4)
    finite = jnp.isfinite(places).all(-1)
    places = box_ops.clip(jnp.where(finite[:, None], places, 0.0), size)
    scores = probabilities[:, :classes].reshape(-1)
    of_class = jnp.tile(jnp.arange(classes, dtype=jnp.int32), len(boxes))
    candidates = finite & jnp.repeat(valid, classes, total_repeat_length=scores.size) & (scores > score)
    ids, valid_places = nms(places, scores, threshold=overlap, num=num, valid=candidates, groups=of_class)
    return places[ids], jnp.where(valid_places, scores[ids], 0.0), of_class[ids], ids // classes, valid_places
