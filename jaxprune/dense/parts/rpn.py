"""The region proposal network (Ren et al., 2015) with detectron2's rules: it proposes boxes that may hold objects."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxprune.dense.parts.simple_pyramid import strides
from jaxprune.nn import Conv
from jaxprune.ops import boxes as box_ops
from jaxprune.ops.anchors import ASPECT_RATIOS, anchors
from jaxprune.ops.box_matching import match, sample
from jaxprune.ops.nms import nms

LOW, HIGH = 0.3, 0.7
POSITIVE_FRACTION = 0.5
NMS_THRESHOLD = 0.7


class Proposals(NamedTuple):
    """Boxes that may hold objects, by falling logit.

    Attributes:
      valid: which places are taken.
    """

    boxes: Float[Array, "b p 4"]
    logits: Float[Array, "b p"]
    valid: Bool[Array, "b p"]


class RPN(nnx.Module):
    """3×3 convolutions with ReLU, and for every anchor a logit and four offsets; shared by all levels.

    Args:
      features: channels of the maps.
      anchor_sizes: side of the anchors of each level, in pixels.
      aspect_ratios: height over width.
      num_convs: number of 3×3 convolutions.
      batch: anchors that each image's loss samples.
      before_nms, after_nms: boxes of each level before suppression, and of all levels after it: (training, test).
    """

    def __init__(
        self,
        features: int,
        *,
        anchor_sizes: Sequence[int] = (32, 64, 128, 256, 512),
        aspect_ratios: Sequence[float] = ASPECT_RATIOS,
        num_convs: int = 2,
        batch: int = 256,
        before_nms: tuple[int, int] = (2000, 1000),
        after_nms: tuple[int, int] = (1000, 1000),
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        def layer(out: int, size: int) -> Conv:
            conv = Conv(features, out, size, use_bias=True, dtype=dtype, rngs=rngs)
            conv.kernel[...] = 0.01 * jax.random.normal(rngs.params(), conv.kernel.shape)
            return conv

        self.convs = nnx.List([layer(features, 3) for _ in range(num_convs)])
        self.objectness, self.offsets = layer(len(aspect_ratios), 1), layer(4 * len(aspect_ratios), 1)
        self.anchor_sizes, self.aspect_ratios, self.batch = tuple(anchor_sizes), tuple(aspect_ratios), batch
        self.before_nms, self.after_nms = before_nms, after_nms

    def anchors(self, pyramid: Sequence[Float[Array, "b _ _ c"]], height: int) -> list[Float[np.ndarray, "_ 4"]]:
        """The anchors of each level.

        Args:
          height: of the padded images, in pixels.
        """
        return [
            anchors((maps.shape[1], maps.shape[2]), stride, (size,), self.aspect_ratios)
            for maps, stride, size in zip(pyramid, strides(pyramid, height), self.anchor_sizes, strict=True)
        ]

    def __call__(
        self, pyramid: Sequence[Float[Array, "b _ _ c"]]
    ) -> tuple[list[Float[Array, "b _"]], list[Float[Array, "b _ 4"]]]:
        """Returns the logits and the offsets of every level's anchors, in float32."""
        logits, offsets = [], []
        for x in pyramid:
            for conv in self.convs:
                x = jax.nn.relu(conv(x))
            logits.append(self.objectness(x).reshape(len(x), -1).astype(jnp.float32))
            offsets.append(self.offsets(x).reshape(len(x), -1, 4).astype(jnp.float32))
        return logits, offsets

    def propose(
        self,
        logits: Sequence[Float[Array, "b _"]],
        offsets: Sequence[Float[Array, "b _ 4"]],
        places: Sequence[Float[np.ndarray, "_ 4"]],
        sizes: Float[Array, "b 2"],
        *,
        train: bool = False,
    ) -> Proposals:
        """The best boxes of an image, after suppression inside each level; no gradient flows through them.

        Args:
          places: the anchors of each level.
          sizes: (height, width) of each image without its padding.
        """
        before, after = (pair[0 if train else 1] for pair in (self.before_nms, self.after_nms))
        of_image = lambda logits, offsets, size: best_boxes(logits, offsets, size, places, before=before, after=after)
        return Proposals(*jax.vmap(of_image)(*jax.lax.stop_gradient((list(logits), list(offsets), sizes))))

    def losses(
        self,
        logits: Sequence[Float[Array, "b _"]],
        offsets: Sequence[Float[Array, "b _ 4"]],
        places: Sequence[Float[np.ndarray, "_ 4"]],
        boxes: Float[Array, "b m 4"],
        valid: Bool[Array, "b m"],
        keys: Float[Array, "b n"],
    ) -> tuple[dict[str, Float[Array, ""]], Any]:
        """The losses of sampled anchors, divided by the number of anchors that all images may sample.

        Returns:
          (losses, (matches, sampled) of each image).
        """
        all_anchors = jnp.asarray(np.concatenate(places))
        all_logits, all_offsets = jnp.concatenate(logits, axis=1), jnp.concatenate(offsets, axis=1)

        def of_image(logits, offsets, boxes, valid, keys):
            matches = match(box_ops.iou(boxes, all_anchors), valid, low=LOW, high=HIGH, low_quality=True)
            sampled = sample(matches.labels, keys, self.batch, POSITIVE_FRACTION)
            targets = jnp.where(sampled.positive[:, None], boxes[matches.objects], all_anchors)
            l1_distance = jnp.abs(offsets - box_ops.encode(all_anchors, targets, box_ops.RPN_WEIGHTS)).sum(-1)
            labels = sampled.positive.astype(jnp.float32)
            entropy = jnp.logaddexp(0.0, logits) - labels * logits
            read = sampled.positive | sampled.negative
            return (entropy * read).sum(), (l1_distance * sampled.positive).sum(), matches, sampled

        entropies, distances, matches, sampled = jax.vmap(of_image)(all_logits, all_offsets, boxes, valid, keys)
        count = self.batch * len(boxes)
        return {"loss_rpn_cls": entropies.sum() / count, "loss_rpn_loc": distances.sum() / count}, (matches, sampled)


def best_boxes(
    logits: Sequence[Float[Array, "*_"]],
    offsets: Sequence[Float[Array, "_ 4"]],
    size: Float[Array, "2"],
    places: Sequence[Float[np.ndarray, "_ 4"]],
    *,
    before: int,
    after: int,
) -> tuple[Float[Array, "k 4"], Float[Array, "k"], Bool[Array, "k"]]:
    """The proposals of one image: boxes, logits, and which places are taken.

    Args:
      logits, offsets, places: of each level's anchors: whether it shows an object, how its box differs, and the anchor.
      size: (height, width) of the image in pixels.
      before, after: numbers of proposals of a level before non-maximum suppression, and of all levels after it.
    """
    boxes, scores, levels = [], [], []
    for level, (values, change, start) in enumerate(zip(logits, offsets, places, strict=True)):
        first = jnp.argsort(-values, stable=True)[:before]
        boxes.append(box_ops.decode(jnp.asarray(start)[first], change[first], box_ops.RPN_WEIGHTS))
        scores.append(values[first])
        levels.append(np.full(len(first), level, np.int32))
    return suppressed(jnp.concatenate(boxes), jnp.concatenate(scores), np.concatenate(levels), size, after)


def suppressed(
    boxes: Float[Array, "n 4"],
    logits: Float[Array, "n"],
    levels: Int[np.ndarray, "n"],
    size: Float[Array, "2"],
    num: int,
) -> tuple[Float[Array, "k 4"], Float[Array, "k"], Bool[Array, "k"]]:
    """Boxes clipped to the image, without empty ones and without those that overlap a better one of their level.

    Args:
      boxes, logits, levels: of the proposals.
      size: (height, width) of the image in pixels.
      num: number of boxes to keep.
    """
    valid = jnp.isfinite(boxes).all(-1) & jnp.isfinite(logits)
    boxes = box_ops.clip(jnp.where(valid[:, None], boxes, 0.0), size)
    valid &= box_ops.nonempty(boxes)
    options: Any = {"threshold": NMS_THRESHOLD, "num": num, "valid": valid, "groups": jnp.asarray(levels)}
    ids, valid_places = nms(boxes, logits, **options)
    return boxes[ids], logits[ids], valid_places
