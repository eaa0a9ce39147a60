"""Mask R-CNN (He et al., 2017) on a plain ViT, as in ViTDet (Li et al., 2022)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.dense.parts.base import map_features, map_grids
from jaxprune.dense.parts.detector import DetectionLoss, Detections, Detector, Objects, Sampling
from jaxprune.dense.parts.published_detector import BOX_HEAD, patch_side, rules
from jaxprune.dense.parts.roi_heads import (
    BOX_BINS,
    MASK_BINS,
    POSITIVE_FRACTION,
    BoxHead,
    MaskHead,
    SampledBoxes,
    detections,
    mask_loss,
    of_class,
    sampled_boxes,
)
from jaxprune.dense.parts.rpn import RPN, Proposals
from jaxprune.dense.parts.simple_pyramid import SimplePyramid, strides
from jaxprune.errors import UserError
from jaxprune.nn import Host
from jaxprune.nn.images import require_float
from jaxprune.ops import boxes as box_ops
from jaxprune.ops.instance_masks import Outlines, targets_from_bitmaps, targets_from_outlines
from jaxprune.ops.roi_align import pool

OVERLAP = 0.5
LEVELS = 5


class MaskRCNN(Detector):
    """A simple feature pyramid on the last map of a host, a region proposal network, a box head and a mask head.

    Losses are normalised as in detectron2. Compute in float32 whatever decides: boxes, overlaps, probabilities.

    >>> import jax, jax.numpy as jnp, jaxprune
    >>> from flax import nnx
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2, features=8, hidden=8)
    >>> detector = jaxprune.dense.create(
    ...     "mask_rcnn", encoder="vitdet", num_classes=3, max_detections=5, **sizes, rngs=nnx.Rngs(0))
    >>> detections = jax.eval_shape(detector, jnp.zeros((1, 32, 32, 3)))
    >>> detections.boxes.shape, detections.masks.shape
    ((1, 5, 4), (1, 5, 28, 28))

    Args:
      features: channels of the pyramid and of the heads.
      hidden: width of the box head's hidden layer.
      anchor_sizes: side of the anchors of each of the five levels, in pixels.
      rpn_batch, roi_batch: anchors and boxes that each image's losses sample.
      before_nms, after_nms: see `RPN`.
      min_score: detections up to this score are left out.
      overlap: overlap from which on a detection suppresses another of its class.
      max_detections: detections of an image.
      with_masks: whether there is a mask head.

    Raises:
      UserError: the patches of the encoder are not square, there is one patch, or not a size of anchors for each level.
    """

    def __init__(
        self,
        encoder: Host,
        *,
        num_classes: int = 80,
        features: int = 256,
        hidden: int = 1024,
        anchor_sizes: tuple[int, ...] = (32, 64, 128, 256, 512),
        rpn_batch: int = 256,
        roi_batch: int = 512,
        before_nms: tuple[int, int] = (2000, 1000),
        after_nms: tuple[int, int] = (1000, 1000),
        min_score: float = 0.05,
        overlap: float = 0.5,
        max_detections: int = 100,
        with_masks: bool = True,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        patch = getattr(getattr(encoder, "patch_embed", None), "patch_size", (16, 16))
        if len(set(patch)) > 1:
            raise UserError(
                f"Patches of {patch[0]} × {patch[1]} pixels are not square, and a detector has one stride for rows and "
                "columns: use an encoder with square patches; images may be rectangles."
            )
        super().__init__(encoder, num_classes, (-1,))
        (width,), (grid,) = map_features(encoder, self.indices), map_grids(encoder, self.indices)
        if len(anchor_sizes) != LEVELS or min(grid) < 2:
            raise UserError(
                f"The detector has {LEVELS} maps, the coarsest a quarter of the encoder's grid, and got "
                f"{len(anchor_sizes)} anchor_sizes and a grid of {' × '.join(map(str, grid))}: give {LEVELS} sizes, "
                "and images of at least 2 × 2 patches."
            )
        common: Any = {"dtype": dtype, "rngs": rngs}
        self.pyramid = SimplePyramid(width, features, **common)
        options: Any = {"before_nms": before_nms, "after_nms": after_nms, "batch": rpn_batch}
        self.rpn = RPN(features, anchor_sizes=anchor_sizes, **options, **common)
        self.box_heads = nnx.List(self._box_heads(features, hidden, **common))
        self.mask_head: Any = nnx.data(MaskHead(features, num_classes, **common) if with_masks else None)
        self.roi_batch, self.min_score, self.overlap = roi_batch, min_score, overlap
        self.max_detections = max_detections

    def _box_heads(self, features: int, hidden: int, **common: Any) -> list[BoxHead]:
        return [BoxHead(features, self.num_classes, hidden=hidden, **common)]

    @property
    def published_rules(self) -> Any:
        """detectron2's names and layouts of everything besides the host."""
        return rules(patch_side(self.encoder), [[f"roi_heads.{part}" for part in BOX_HEAD]])

    def maps(
        self, images: Float[Array, "b h w c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> list[Float[Array, "b _ _ c"]]:
        """The pyramid: maps of five strides, the finest first.

        Raises:
          UserError: the images are of an integer dtype.
        """
        require_float(images)
        (last,) = self.encoder.forward_intermediates(images, (-1,), intermediates_only=True, train=train, key=key)
        return self.pyramid(last)

    def __call__(
        self,
        images: Float[Array, "b h w c"],
        sizes: Float[Array, "b 2"] | None = None,
        *,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> Detections:
        """See `Detector`."""
        pyramid, sizes = self.maps(images, train=train, key=key), _sizes(images, sizes)
        proposals = self.propose(pyramid, images, sizes)
        return self.detect(pyramid, images, proposals, sizes)

    def propose(
        self, pyramid: list[Float[Array, "b _ _ c"]], images: Float[Array, "b h w c"], sizes: Float[Array, "b 2"]
    ) -> Proposals:
        """The boxes that may hold objects, as in the test."""
        logits, offsets = self.rpn(pyramid)
        return self.rpn.propose(logits, offsets, self.rpn.anchors(pyramid, images.shape[1]), sizes)

    def detect(
        self,
        pyramid: list[Float[Array, "b _ _ c"]],
        images: Float[Array, "b h w c"],
        proposals: Proposals,
        sizes: Float[Array, "b 2"],
    ) -> Detections:
        """The detections among proposals, with their masks."""
        boxes, probabilities = self.scored(pyramid, images, proposals, sizes)
        options: Any = {"score": self.min_score, "overlap": self.overlap, "num": self.max_detections}
        final = jax.vmap(lambda *parts: detections(*parts, **options))
        places, scores, classes, _, places_taken = final(boxes, probabilities, proposals.valid, sizes)
        masks = None
        if self.mask_head is not None:
            logits = self.mask_head(_flat(self._pooled(pyramid, images, places, MASK_BINS)))
            masks = jax.nn.sigmoid(of_class(logits, classes.reshape(-1)))
            masks = masks.reshape(*classes.shape, *masks.shape[1:])
        return Detections(places, scores, classes, masks, places_taken)

    def scored(
        self,
        pyramid: list[Float[Array, "b _ _ c"]],
        images: Float[Array, "b h w c"],
        proposals: Proposals,
        sizes: Float[Array, "b 2"],
    ) -> tuple[Float[Array, "b p d"], Float[Array, "b p k"]]:
        """The boxes of every class of every proposal, and the probabilities of the classes and background."""
        (head,) = self.box_heads
        logits, offsets = head(_flat(self._pooled(pyramid, images, proposals.boxes, BOX_BINS)))
        boxes = head.boxes(offsets, _flat(proposals.boxes))
        batch = proposals.boxes.shape[:2]
        return boxes.reshape(*batch, -1), jax.nn.softmax(logits).reshape(*batch, -1)

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
        """See `Detector`."""
        sizes = _sizes(images, sizes)
        if not objects.boxes.shape[1]:
            objects = _with_a_place(objects)
        valid = objects.valid & box_ops.nonempty(objects.boxes)
        boxes = jnp.where(valid[..., None], objects.boxes, 0.0).astype(jnp.float32)
        logits, offsets = self.rpn(maps)
        places = self.rpn.anchors(maps, images.shape[1])
        sampling_noise = self._sampling(len(images), sum(map(len, places)), valid.shape[1], train, key)
        sampling_noise = sampling_noise if sampling is None else sampling
        losses, of_anchors = self.rpn.losses(logits, offsets, places, boxes, valid, sampling_noise.anchors)
        proposals = self.rpn.propose(logits, offsets, places, sizes, train=train)
        options: Any = {"num": self.roi_batch, "overlap": OVERLAP, "num_classes": self.num_classes}
        draw = jax.vmap(lambda *parts: sampled_boxes(*parts, **options))
        sampled = draw(proposals.boxes, proposals.valid, boxes, objects.classes, valid, sampling_noise.proposals)
        of_boxes, details = self._box_losses(maps, images, sampled, boxes, objects.classes, valid, sizes)
        losses = {**of_boxes, **losses}
        if self.mask_head is not None and objects.masks is not None:
            losses["loss_mask"], details["masks"] = self._mask_loss(maps, images, sampled, objects.masks)
        details |= {"rpn": (logits, offsets, places), "anchors": of_anchors}
        details |= {"proposals": proposals, "sampled": sampled}
        return jnp.stack(list(losses.values())).sum(), DetectionLoss(losses, details)

    def _sampling(self, batch: int, anchors: int, objects: int, train: bool, key: Any) -> Any:
        if key is None:
            return None
        first, second = jax.random.split(key)
        places = self.rpn.after_nms[0 if train else 1] + objects
        return Sampling(jax.random.uniform(first, (batch, anchors)), jax.random.uniform(second, (batch, places)))

    def _box_losses(
        self,
        pyramid: Any,
        images: Array,
        sampled: SampledBoxes,
        boxes: Float[Array, "b m 4"],
        classes: Any,
        valid: Any,
        sizes: Any,
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """The losses of the box heads, and what they were computed from."""
        (head,) = self.box_heads
        pooled = self._pooled(pyramid, images, sampled.boxes, BOX_BINS)
        logits, offsets = head(_flat(pooled))
        targets = jax.vmap(lambda boxes, ids: boxes[ids])(boxes, sampled.objects)
        losses = head.losses(logits, offsets, SampledBoxes(*map(_flat, sampled)), _flat(targets))
        return losses, {"pooled": pooled, "stages": [(logits, offsets)]}

    def _mask_loss(self, pyramid: Any, images: Array, sampled: SampledBoxes, masks: Any) -> tuple[Array, Any]:
        """The loss of the masks of boxes with an object, which come first among the sampled ones."""
        most = int(self.roi_batch * POSITIVE_FRACTION)
        first = SampledBoxes(*(part[:, :most] for part in sampled))
        positive = first.valid & (first.classes < self.num_classes)
        pooled = self._pooled(pyramid, images, first.boxes, MASK_BINS)
        logits = self.mask_head(_flat(pooled))
        of_label = of_class(logits, jnp.where(positive, first.classes, 0).reshape(-1))
        make = targets_from_outlines if isinstance(masks, Outlines) else targets_from_bitmaps
        side = of_label.shape[1]
        targets = jax.vmap(lambda masks, ids, boxes: make(masks, ids, boxes, side))(masks, first.objects, first.boxes)
        loss = mask_loss(of_label, _flat(targets), positive.reshape(-1))
        return loss, (pooled, logits, targets, positive)

    def _pooled(
        self, pyramid: Any, images: Array, boxes: Float[Array, "b n 4"], bins: int
    ) -> Float[Array, "b n s s c"]:
        """The features of boxes, from all levels but the last."""
        places = strides(pyramid[:-1], images.shape[1])
        return jax.vmap(lambda maps, boxes: pool(maps, boxes, bins, strides=places))(list(pyramid[:-1]), boxes)


def _with_a_place(objects: Objects) -> Objects:
    """A place without an object for batches that have none: arrays without rows have no best one."""
    pad = lambda x: jnp.pad(x, ((0, 0), (0, 1), *((0, 0),) * (x.ndim - 2)))
    masks: Any = objects.masks
    if isinstance(masks, Outlines):
        masks = masks._replace(edges=pad(masks.edges), polygons=pad(masks.polygons))
    elif masks is not None:
        masks = pad(masks)
    return Objects(pad(objects.boxes), pad(objects.classes), pad(objects.valid), masks)


def _sizes(images: Array, sizes: Any) -> Float[Array, "b 2"]:
    full_size = jnp.broadcast_to(jnp.asarray(images.shape[1:3], jnp.float32)[None], (len(images), 2))
    return full_size if sizes is None else jnp.asarray(sizes, jnp.float32)


def _flat(part: Array) -> Array:
    """Puts the boxes of all images into one axis."""
    return part.reshape(-1, *part.shape[2:])
