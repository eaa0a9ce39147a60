"""A batch of images with objects on the device: normalised, and in the form that a detector's loss reads."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.data.augment_maps import normalize_padded
from jaxprune.dense.parts.detector import Objects
from jaxprune.ops.instance_masks import Outlines
from jaxprune.preprocessing import IMAGENET_MEAN, IMAGENET_STD


def detector_input(
    batch: Mapping[str, Any], *, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD
) -> tuple[Float[Array, "b h w c"], Float[Array, "b 2"], Objects | None]:
    """Returns images, the sizes without their padding, and the objects; None in the test.

    Args:
      batch: of `joint.detection.TrainObjects` or `TestObjects`.
      mean, std: normalisation for pixels in [0, 1].
    """
    images = normalize_padded(jnp.asarray(batch["image"]), jnp.asarray(batch["extent"]), mean, std)
    sizes = jnp.asarray(batch["extent"], jnp.float32)
    if "objects" not in batch:
        return images, sizes, None
    boxes, classes, valid, masks = (jnp.asarray(batch[name]) for name in ("boxes", "classes", "objects", "masks"))
    if "polygons" in batch:
        form: Any = Outlines(masks, jnp.asarray(batch["polygons"]), jnp.asarray(batch["numbers"]))
    else:
        form = masks if masks.ndim == 4 else None
    return images, sizes, Objects(boxes, classes, valid, form)
