"""Distances from a teacher: of logits (DeiT) and of the tokens that are kept (DynamicViT)."""

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


def deit_distillation(
    base: Float[Array, ""],
    student: Float[Array, "b c"],
    teacher: Float[Array, "b c"],
    *,
    kind: str = "soft",
    alpha: float = 0.5,
    temperature: float = 1.0,
) -> Float[Array, ""]:
    """Mixes a loss with distillation into the distillation head (DeiT, Touvron et al., 2021, eq. 2-3).

    Args:
      base: the loss of the class head.
      student: logits of the distillation head.
      kind: "soft", the KL divergence times the temperature squared; or "hard", cross-entropy with the class that the
        teacher predicts.
      alpha: weight of the distillation term.
    """
    if kind == "soft":
        distilled = kl_distillation(student, teacher, temperature) * temperature**2
    elif kind == "hard":
        log_probs = jax.nn.log_softmax(student.astype(jnp.float32), axis=-1)
        distilled = -jnp.take_along_axis(log_probs, teacher.argmax(-1)[:, None], axis=-1).mean()
    else:
        raise unknown("kind of distillation", kind, ("soft", "hard"))
    return base * (1 - alpha) + distilled * alpha


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
