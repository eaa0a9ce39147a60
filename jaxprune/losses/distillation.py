"""Distances from a teacher: of logits, of the tokens that are kept (DynamicViT), and of features."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Shaped

from jaxprune.errors import unknown


def kl_distillation(
    student: Float[Array, "b c"], teacher: Float[Array, "b c"], temperature: float = 1.0
) -> Float[Array, ""]:
    """KL divergence between the teacher's and the student's softmax, averaged over the batch."""
    return _kl(student, teacher, temperature).mean()


def _kl(
    student: Float[Array, "*lead c"], teacher: Float[Array, "*lead c"], temperature: float
) -> Float[Array, "*lead"]:
    log_student = jax.nn.log_softmax(student.astype(jnp.float32) / temperature, axis=-1)
    log_teacher = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature, axis=-1)
    return (jnp.exp(log_teacher) * (log_teacher - log_student)).sum(-1)


def token_distillation(
    student: Float[Array, "b n d"],
    teacher: Float[Array, "b n d"],
    kept: Shaped[Array, "b n"],
    *,
    kind: str = "mse",
) -> Float[Array, ""]:
    """Distance of the kept tokens from the teacher's, averaged over them; 0 if none is kept (DynamicViT).

    Args:
      student, teacher: patch tokens after the final norm.
      kept: the last decision; above one half = kept. It gets no gradient.
      kind: "mse", averaged over the channels too, or "kl", between the softmaxes over the channels.
    """
    if kind == "mse":
        error = jnp.square(student.astype(jnp.float32) - teacher.astype(jnp.float32)).mean(-1)
    elif kind == "kl":
        error = _kl(student, teacher, 1.0)
    else:
        raise unknown("kind of token distillation", kind, ("mse", "kl"))
    weight = (kept > 0.5).astype(jnp.float32)
    return (error * weight).sum() / jnp.maximum(weight.sum(), 1)


def feature_distillation(
    student: Float[Array, "b n d"],
    teacher: Float[Array, "b n d"],
    where: Shaped[Array, "b n"],
    *,
    smooth_l1: float = 0.0,
) -> Float[Array, ""]:
    """Distance of features from a teacher's, averaged over the tokens of the batch: 1 - cosine, mixed with smooth L1.

    Args:
      student, teacher: features of each token; computed in float32.
      where: True at the tokens that count.
      smooth_l1: share of the smooth L1 distance (quadratic below 1), which is averaged over the channels.
    """
    student, teacher = student.astype(jnp.float32), teacher.astype(jnp.float32)
    # The square root has no finite gradient at 0.
    norms = jnp.sqrt(jnp.square(student).sum(-1) + 1e-12) * jnp.sqrt(jnp.square(teacher).sum(-1) + 1e-12)
    error = 1 - (student * teacher).sum(-1) / norms
    if smooth_l1:
        gap = jnp.abs(student - teacher)
        smooth = jnp.where(gap < 1, 0.5 * jnp.square(gap), gap - 0.5).mean(-1)
        error = (1 - smooth_l1) * error + smooth_l1 * smooth
    weight = where.astype(jnp.float32)
    return (error * weight).sum() / weight.sum()
