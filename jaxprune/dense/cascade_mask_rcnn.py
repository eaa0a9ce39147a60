"""Cascade Mask R-CNN (Cai and Vasconcelos, 2019) on a plain ViT, as in ViTDet."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.dense.mask_rcnn import MaskRCNN
from jaxprune.dense.parts.published_detector import BOX_HEAD, patch_side, rules
from jaxprune.dense.parts.roi_heads import BOX_BINS, BoxHead, SampledBoxes, relabelled
from jaxprune.dense.parts.rpn import Proposals
from jaxprune.ops import boxes as box_ops

# The overlap that each stage asks for, and its weights of offsets.
OVERLAPS = (0.5, 0.6, 0.7)
WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))


class CascadeMaskRCNN(MaskRCNN):
    """Mask R-CNN with three box heads, each of which starts from the boxes of the one before.

    Every stage asks for a larger overlap. The same boxes go through all of them, relabelled each time; the pyramid gets
    a third of each stage's gradient. In the test, scores are averaged over the stages.

    >>> from flax import nnx
    >>> import jaxprune
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, features=8, hidden=8)
    >>> detector = jaxprune.dense.create("cascade_mask_rcnn", encoder="vitdet", **sizes, rngs=nnx.Rngs(0))
    >>> len(detector.box_heads)
    3
    """

    def _box_heads(self, features: int, hidden: int, **common: Any) -> list[BoxHead]:
        options: Any = {"hidden": hidden, "class_agnostic": True, **common}
        return [BoxHead(features, self.num_classes, weights=weights, **options) for weights in WEIGHTS]

    @property
    def published_rules(self) -> Any:
        """detectron2's names and layouts of everything besides the host."""
        return rules(
            patch_side(self.encoder), [[f"roi_heads.{part}.{i}" for part in BOX_HEAD] for i in range(len(WEIGHTS))]
        )

    def scored(
        self, pyramid: Any, images: Float[Array, "b h w c"], proposals: Proposals, sizes: Float[Array, "b 2"]
    ) -> tuple[Float[Array, "b p 4"], Float[Array, "b p k"]]:
        """The last stage's box of every proposal, and the mean probabilities of all stages."""
        boxes, probabilities = proposals.boxes, []
        for stage, head in enumerate(self.box_heads):
            boxes = boxes if stage == 0 else _clipped(boxes, sizes)
            logits, offsets = head(_flat(self._pooled(pyramid, images, boxes, BOX_BINS)))
            boxes = head.boxes(offsets, _flat(boxes)).reshape(boxes.shape)
            probabilities.append(jax.nn.softmax(logits).reshape(*boxes.shape[:2], -1))
        return boxes, sum(probabilities[1:], probabilities[0]) / len(probabilities)

    def _box_losses(
        self, pyramid: Any, images: Array, sampled: SampledBoxes, boxes: Any, classes: Any, valid: Any, sizes: Any
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        losses, stages, first, moved = {}, [], None, sampled.boxes
        for stage, head in enumerate(self.box_heads):
            if stage:
                moved = _clipped(jax.lax.stop_gradient(moved), sizes)
                options: Any = {"overlap": OVERLAPS[stage], "num_classes": self.num_classes}
                relabel = jax.vmap(
                    lambda *parts, options=options: relabelled(SampledBoxes(*parts[:5]), *parts[5:], **options)
                )
                sampled = relabel(*sampled, moved, boxes, classes, valid)
            pooled = self._pooled(pyramid, images, sampled.boxes, BOX_BINS)
            first = pooled if first is None else first
            logits, offsets = head(_flat(_scaled_gradient(pooled, 1 / len(self.box_heads))))
            targets = jax.vmap(lambda boxes, ids: boxes[ids])(boxes, sampled.objects)
            of_stage = head.losses(logits, offsets, SampledBoxes(*map(_flat, sampled)), _flat(targets))
            losses |= {f"{name}_stage{stage}": loss for name, loss in of_stage.items()}
            stages.append((logits, offsets))
            moved = head.boxes(offsets, _flat(sampled.boxes)).reshape(sampled.boxes.shape)
        return losses, {"pooled": first, "stages": stages}


def _clipped(boxes: Float[Array, "b n 4"], sizes: Float[Array, "b 2"]) -> Float[Array, "b n 4"]:
    return jax.vmap(box_ops.clip)(boxes, sizes)


def _scaled_gradient(x: Array, share: float) -> Array:
    """The same numbers, with a share of their gradient."""
    return share * x + (1 - share) * jax.lax.stop_gradient(x)


def _flat(part: Array) -> Array:
    return jnp.reshape(part, (-1, *part.shape[2:]))
