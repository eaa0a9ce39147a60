"""How far a student network is from its teacher on the same images: pooled features, patches, logits."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxprune import losses
from jaxprune.errors import UserError
from jaxprune.ops.resize import resize


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights of the parts of `distance`; each part is relative to the teacher, so 1 suits networks of any scale.

    Attributes:
      features: of the pooled features: one minus their cosine, plus their squared distance.
      patches: of the squared distance of the patch tokens after the final norm; dropped patches do not count.
      logits: of the KL divergence of the predicted classes, for networks with a head.

    Raises:
      UserError: a weight is negative.
    """

    features: float = 1.0
    patches: float = 1.0
    logits: float = 1.0

    def __post_init__(self) -> None:
        for name, weight in dataclasses.asdict(self).items():
            if weight < 0:
                raise UserError(f"The weight {name}={weight} of a loss is negative: use 0 to leave the loss out.")

    def __bool__(self) -> bool:
        """Whether there is a loss at all."""
        return any(dataclasses.astuple(self))


class View(NamedTuple):
    """What a network says of a batch of images.

    Attributes:
      features: pooled features.
      patches: the map of patch tokens after the final norm, dense again after a plan.
      held: patches that a row of the network still holds.
      logits: None for a network without a head.
    """

    features: Float[Array, "b d"]
    patches: Float[Array, "b *grid d"]
    held: Bool[Array, "b ..."]
    logits: Float[Array, "b c"] | None


def view(model: Any, images: Float[Array, "b *sides c"], **options: Any) -> View:
    """Returns a network's view of normalised images, which are resized to its size.

    Args:
      model: a `Host`.
      images: (b, h, w, 3).
      options: `train` and `key` of `forward_features`.
    """
    size = model.preprocessing.sides
    if images.shape[1:-1] != size:
        images = resize(images, size, "bicubic", antialias=True)
    tokens, aux = model.forward_features(images, **options)
    patches = model.patch_maps(tokens, size, aux.waiting)
    grid = patches.shape[:-1]
    held = jnp.ones(grid, bool)
    if tokens.assign is not None and tokens.assign.shape[1] == patches[0, ..., 0].size:
        held = (tokens.assign >= 0).reshape(grid)
    logits = model.forward_head(tokens)[0] if model.num_classes else None
    return View(model.pool(tokens), patches, held, logits)


def distance(student: View, teacher: View, weights: Weights) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Returns the weighted distance of a student's view from a teacher's, and its parts by name.

    Features and patches are compared where both networks have the same width; a map of patches on another grid is
    resized to the student's.

    Raises:
      UserError: there is nothing to compare.
    """
    teacher = jax.lax.stop_gradient(teacher)
    parts = {}
    if student.features.shape == teacher.features.shape:
        if weights.features:
            parts["features"] = (1 - cosine(student, teacher)).mean() + _relative(student.features, teacher.features)
        if weights.patches:
            maps = teacher.patches
            if maps.shape != student.patches.shape:
                rows, columns = student.patches.shape[1:-1]
                maps = resize(maps, (rows, columns), "bilinear", antialias=True)
            parts["patches"] = _relative(student.patches, maps, student.held[..., None])
    if weights.logits and student.logits is not None and teacher.logits is not None:
        parts["logits"] = losses.kl_distillation(student.logits, teacher.logits)
    if not parts:
        raise UserError(
            f"The student has features of width {student.features.shape[1]} and the teacher of width "
            f"{teacher.features.shape[1]}, and there are no logits to compare: give networks of one width or with a "
            "head, and a weight above 0."
        )
    loss = jnp.stack([getattr(weights, name) * value for name, value in parts.items()]).sum()
    return loss, {f"loss_{name}": value for name, value in parts.items()}


def cosine(student: View, teacher: View) -> Float[Array, "b"]:
    """Returns the cosine of the pooled features of each image."""
    first, second = student.features.astype(jnp.float32), teacher.features.astype(jnp.float32)
    norms = jnp.linalg.norm(first, axis=-1) * jnp.linalg.norm(second, axis=-1)
    return (first * second).sum(-1) / jnp.maximum(norms, 1e-12)


def _relative(values: Array, target: Array, where: Array | bool = True) -> Float[Array, ""]:
    """The squared distance from a target, as a share of the target's own square, over the places `where`."""
    values, target = values.astype(jnp.float32), target.astype(jnp.float32)
    error = jnp.where(where, jnp.square(values - target), 0).sum()
    return error / jnp.maximum(jnp.where(where, jnp.square(target), 0).sum(), 1e-12)
