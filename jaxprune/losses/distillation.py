"""Distances from a teacher: of logits, and of the tokens that are kept (DynamicViT)."""

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
