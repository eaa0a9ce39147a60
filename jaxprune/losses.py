"""Losses that optax does not have; cross-entropy is optax's."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Shaped

from jaxprune.errors import unknown


def masked_mse(
    pred: Float[Array, "b p q"], target: Float[Array, "b p q"], masked: Shaped[Array, "b p"]
) -> Float[Array, ""]:
    """Averages the squared error over the masked patches of the whole batch (MAE).

    The error is averaged over each patch, then weighted by `masked` (bool, or weights) and divided by the sum of the
    weights; computed in float32.
    """
    weight = masked.astype(jnp.float32)
    error = jnp.square(pred.astype(jnp.float32) - target.astype(jnp.float32)).mean(-1)
    return (error * weight).sum() / weight.sum()


def asymmetric_loss(
    logits: Float[Array, "b c"],
    labels: Float[Array, "b c"],
    *,
    gamma_negative: float = 4.0,
    gamma_positive: float = 0.0,
    clip: float = 0.05,
    eps: float = 1e-8,
) -> Float[Array, "b"]:
    """Multi-label cross-entropy that forgets easy negatives (ASL, Ridnik et al., 2021), one value per image.

    Classes are summed. The published recipe also sums over the batch; its gradient passes through the focusing weight.

    Args:
      labels: 1 for the classes that are there, else 0.
      clip: is added to the probability of absence, up to 1.
    """
    present = jax.nn.sigmoid(logits.astype(jnp.float32))
    absent = jnp.minimum(1.0 - present + clip, 1.0)
    log = labels * jnp.log(jnp.maximum(present, eps)) + (1 - labels) * jnp.log(jnp.maximum(absent, eps))
    right = labels * present + (1 - labels) * absent
    focus = (1.0 - right) ** (labels * gamma_positive + (1 - labels) * gamma_negative)
    return -(focus * log).sum(-1)


def kl_distillation(
    student: Float[Array, "b c"], teacher: Float[Array, "b c"], temperature: float = 1.0
) -> Float[Array, ""]:
    """KL divergence of the student's softmax from the teacher's, averaged over the batch."""
    return _kl(student, teacher, temperature).mean()


def _kl(
    student: Float[Array, "*lead c"], teacher: Float[Array, "*lead c"], temperature: float
) -> Float[Array, "*lead"]:
    ours = jax.nn.log_softmax(student.astype(jnp.float32) / temperature, axis=-1)
    theirs = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature, axis=-1)
    return (jnp.exp(theirs) * (theirs - ours)).sum(-1)


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
        teacher names.
      alpha: weight of the distillation.
    """
    if kind == "soft":
        distilled = kl_distillation(student, teacher, temperature) * temperature**2
    elif kind == "hard":
        log_probs = jax.nn.log_softmax(student.astype(jnp.float32), axis=-1)
        distilled = -jnp.take_along_axis(log_probs, teacher.argmax(-1)[:, None], axis=-1).mean()
    else:
        raise unknown("kind of distillation", kind, ("soft", "hard"))
    return base * (1 - alpha) + distilled * alpha


def ratio_loss(decisions: Sequence[Float[Array, "b n"]], keep_rates: Sequence[float]) -> Float[Array, ""]:
    """Squared distance of each image's share of kept tokens from the keep rate, averaged over images and stages.

    DynamicViT, Rao et al., 2021, eq. 13.

    Args:
      decisions: a stage each, 1 = kept; those of a later stage include those of the earlier ones.
      keep_rates: a stage each, relative to all patches.
    """
    pairs = zip(decisions, keep_rates, strict=True)
    return jnp.stack([jnp.square(decision.mean(1) - rate).mean() for decision, rate in pairs]).mean()


def token_distillation(
    student: Float[Array, "b n d"],
    teacher: Float[Array, "b n d"],
    kept: Shaped[Array, "b n"],
    *,
    kind: str = "mse",
) -> Float[Array, ""]:
    """Distance of the tokens still there from the teacher's, averaged over them; 0 where none is left (DynamicViT).

    Args:
      student, teacher: patch tokens behind the final norm.
      kept: the last decision; above one half = still there. It gets no gradient.
      kind: "mse", averaged over the channels too, or "kl", between the softmaxes over the channels.
    """
    if kind == "mse":
        error = jnp.square(student.astype(jnp.float32) - teacher.astype(jnp.float32)).mean(-1)
    elif kind == "kl":
        error = _kl(student, teacher, 1.0)
    else:
        raise unknown("kind of token distillation", kind, ("mse", "kl"))
    there = (kept > 0.5).astype(jnp.float32)
    return (error * there).sum() / jnp.maximum(there.sum(), 1)
