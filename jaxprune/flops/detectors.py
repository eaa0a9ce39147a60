"""The cost of a detector: its encoder under a plan, the pyramid, and its heads."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxprune.dense.mask_rcnn import MaskRCNN
from jaxprune.dense.parts.base import map_features, map_grids
from jaxprune.dense.parts.roi_heads import BOX_BINS, MASK_BINS
from jaxprune.flops import of_model
from jaxprune.flops.traced import multiply_accumulates


class DetectorFlops(NamedTuple):
    """The cost of a detector for one image, in multiply-accumulates.

    Attributes:
      encoder: embedding and blocks, with the plan's reducers.
      pyramid: of the maps of all strides.
      rpn: the region proposal network.
      boxes: the box heads on all proposals.
      masks: the mask head on all detections; 0 without one.
    """

    encoder: int
    pyramid: int
    rpn: int
    boxes: int
    masks: int

    @property
    def total(self) -> int:
        return sum(self)


def of_detector(network: MaskRCNN) -> DetectorFlops:
    """Counts convolutions, linear layers and attention in the test; reading the features of boxes does not count.

    >>> from flax import nnx; import jaxprune
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, features=8, hidden=8)
    >>> detector = jaxprune.dense.create("mask_rcnn", encoder="vitdet", num_classes=3, **sizes, rngs=nnx.Rngs(0))
    >>> of_detector(detector).boxes == 1000 * (4 * 49 * 9 * 8 * 8 + 49 * 8 * 8 + 8 * (4 + 12))
    True

    Args:
      network: the network, or its abstract form under `nnx.eval_shape`; nothing is computed.
    """
    encoder = network.encoder
    counted = of_model(encoder)
    cost = counted.patch_embed + sum(counted.blocks) + counted.reducers + counted.between
    (grid,), (width,) = map_grids(encoder, network.indices), map_features(encoder, network.indices)
    shape = lambda *sides: jax.ShapeDtypeStruct(sides, jnp.float32)
    pyramid, levels = multiply_accumulates(network, lambda model, x: model.pyramid(x), shape(1, *grid, width))
    rpn, _ = multiply_accumulates(network, lambda model, *maps: model.rpn(maps), *levels)
    features = levels[0].shape[-1]
    pooled = shape(network.rpn.after_nms[1], BOX_BINS, BOX_BINS, features)
    boxes, _ = multiply_accumulates(network, lambda model, x: [head(x) for head in model.box_heads], pooled)
    masks: Any = 0
    if network.mask_head is not None:
        pooled = shape(network.max_detections, MASK_BINS, MASK_BINS, features)
        masks, _ = multiply_accumulates(network, lambda model, x: model.mask_head(x), pooled)
    return DetectorFlops(cost, pyramid, rpn, boxes, masks)
