"""How far a student network is from its teacher on the same images: pooled features, maps of patches, logits."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxprune import losses
from jaxprune.dense import DenseNetwork, Segmenter
from jaxprune.errors import UserError
from jaxprune.number_bounds import bounded, require_bounded
from jaxprune.ops.resize import resize


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights of the parts of `distance`; each part is relative to the teacher, so 1 suits networks of any scale.

    Attributes:
      features: of the pooled features: one minus their cosine, plus their squared distance.
      patches: of the squared distance of the patch tokens after the final norm; dropped patches do not count. Of
        networks for segmentation and detection: of the maps that the head reads, all places of them.
      logits: of the KL divergence of the predicted classes, for networks with a head; for segmentation, of every place
        of the first map, by its logits or, of SegViT, its scores.

    Raises:
      UserError: a weight is not a finite number of 0 or more.
    """

    features: float = bounded(1.0, at_least=0)
    patches: float = bounded(1.0, at_least=0)
    logits: float = bounded(1.0, at_least=0)

    def __post_init__(self) -> None:
        require_bounded(self)

    def __bool__(self) -> bool:
        """Whether there is a loss at all."""
        return any(dataclasses.astuple(self))


class View(NamedTuple):
    """What a network says of a batch of images.

    Attributes:
      features: pooled features; None for a network that says nothing of whole images.
      maps: the map of patch tokens after the final norm, dense again after a plan; or those that a head reads.
      held: patches that a row of the network still holds; a head reads all places.
      logits: of whole images, or of every place of a map; None for a network without a head, and for detectors.
    """

    features: Float[Array, "b d"] | None
    maps: tuple[Float[Array, "b ... d"], ...]
    held: Bool[Array, "b ..."]
    logits: Float[Array, "b ... c"] | None


def view(model: Any, images: Float[Array, "b *sides c"], **options: Any) -> View:
    """Returns a network's view of normalised images, which are resized to its size.

    Args:
      model: a `Host`, or a network for segmentation or detection around one.
      images: (b, h, w, 3).
      options: `train` and `key` of `forward_features`.
    """
    size = model.preprocessing.sides
    if images.shape[1:-1] != size:
        images = resize(images, size, "bicubic", antialias=True)
    if isinstance(model, DenseNetwork):
        read = tuple(model.features(images, **options))
        grid = read[0].shape[1:3]
        logits = model.of_maps(read, grid) if isinstance(model, Segmenter) else None
        return View(None, read, jnp.ones((len(images), *grid), bool), logits)
    tokens, aux = model.forward_features(images, **options)
    patches = model.patch_maps(tokens, size, aux.waiting)
    grid = patches.shape[:-1]
    held = jnp.ones(grid, bool)
    if tokens.assign is not None and tokens.assign.shape[1] == patches[0, ..., 0].size:
        held = (tokens.assign >= 0).reshape(grid)
    logits = model.forward_head(tokens)[0] if model.num_classes else None
    return View(model.pool(tokens), (patches,), held, logits)


def distance(student: View, teacher: View, weights: Weights) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Returns the weighted distance of a student's view from a teacher's, and its parts by name.

    Features and maps are compared where both networks have the same width; the teacher's maps are resized to the
    student's where those are on another grid, and so are logits of places.

    Raises:
      UserError: there is nothing to compare.
    """
    teacher = jax.lax.stop_gradient(teacher)
    parts = {}
    if weights.features and _alike(student.features, teacher.features):
        parts["features"] = (1 - _cosine(student.features, teacher.features)).mean()
        parts["features"] += _relative(student.features, teacher.features)
    if weights.patches and all(map(_alike, student.maps, teacher.maps)):
        # A head reads several maps, which need not have one size; a single one may have dropped patches.
        held = student.held[..., None] if len(student.maps) == 1 else True
        distances = [_relative(x, _on_grid_of(x, y), held) for x, y in zip(student.maps, teacher.maps, strict=True)]
        parts["patches"] = jnp.stack(distances).mean()
    if weights.logits and student.logits is not None and teacher.logits is not None:
        logits = _on_grid_of(student.logits, teacher.logits)
        classes = logits.shape[-1]
        parts["logits"] = losses.kl_distillation(student.logits.reshape(-1, classes), logits.reshape(-1, classes))
    if not parts:
        raise UserError(
            f"The student has features of width {student.maps[0].shape[-1]} and the teacher of width "
            f"{teacher.maps[0].shape[-1]}, and there are no logits to compare: give networks of one width or with a "
            "head, and a weight above 0."
        )
    loss = jnp.stack([getattr(weights, name) * value for name, value in parts.items()]).sum()
    return loss, {f"loss_{name}": value for name, value in parts.items()}


def similarity(student: View, teacher: View) -> dict[str, Float[Array, "b"]]:
    """Returns how alike views of each image are.

    `cosine` is that of the pooled features, or the mean over the places of the maps, if both networks have the same
    width; `agreement` the share of predictions with the same class, if both have the same classes.
    """
    similarities = {}
    if _alike(student.features, teacher.features):
        similarities["cosine"] = _cosine(student.features, teacher.features)
    elif student.features is None and all(map(_alike, student.maps, teacher.maps)):
        cosines = [_cosine(x, _on_grid_of(x, y)) for x, y in zip(student.maps, teacher.maps, strict=True)]
        similarities["cosine"] = jnp.stack([values.mean((1, 2)) for values in cosines]).mean(0)
    if _alike(student.logits, teacher.logits):
        same = student.logits.argmax(-1) == _on_grid_of(student.logits, teacher.logits).argmax(-1)
        similarities["agreement"] = same.reshape(len(same), -1).astype(jnp.float32).mean(-1)
    return similarities


def _alike(values: Array | None, target: Array | None) -> bool:
    """Whether both are there and have one width."""
    return values is not None and target is not None and values.shape[-1] == target.shape[-1]


def _on_grid_of(values: Array, target: Array) -> Array:
    """Another map, (b, rows, columns, d), resized to the size of the first; vectors as they are."""
    if values.ndim != 4 or values.shape[1:3] == target.shape[1:3]:
        return target
    return resize(target, (values.shape[1], values.shape[2]), "bilinear", antialias=True)


def _cosine(values: Array, target: Array) -> Float[Array, "..."]:
    values, target = values.astype(jnp.float32), target.astype(jnp.float32)
    norms = jnp.linalg.norm(values, axis=-1) * jnp.linalg.norm(target, axis=-1)
    return (values * target).sum(-1) / jnp.maximum(norms, 1e-12)


def _relative(values: Array, target: Array, where: Array | bool = True) -> Float[Array, ""]:
    """The squared distance from a target, as a share of the target's own square, over the places `where`."""
    values, target = values.astype(jnp.float32), target.astype(jnp.float32)
    error = jnp.where(where, jnp.square(values - target), 0).sum()
    return error / jnp.maximum(jnp.where(where, jnp.square(target), 0).sum(), 1e-12)
