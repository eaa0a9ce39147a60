"""What a classifier is trained for: its classes, its reduction method's own loss, and a teacher's answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxprune import losses
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.nn.params import Split, merge
from jaxprune.reduction import LossContext, Reducer


def total(
    config: Config,
    reducers: Sequence[Reducer],
    logits: jax.Array,
    aux: Any,
    targets: jax.Array,
    taught: tuple[jax.Array, Any] | None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the loss of a batch and its parts by name.

    Args:
      config: with the weights of the parts in `distill`.
      reducers: of the network, in the order of its plan; none without one.
      logits, aux: of the network.
      targets: of the classes, (b, c).
      taught: logits and aux of a teacher on the same images, if there is one.
    """
    parts = {"classes": (1.0, classes(config.loss, logits, targets))}
    for name, (weight, value) in reduction_losses(reducers, logits, aux, targets, taught).items():
        parts[name] = (config.distill.get(name, weight), value)
    if taught is not None:
        parts["logits"] = (config.distill.logits, losses.kl_distillation(logits, taught[0]))
        if config.distill.tokens:
            parts["tokens"] = (config.distill.tokens, _tokens(config, aux, taught[1]))
    loss = jnp.stack([weight * value for weight, value in parts.values()]).sum()
    return loss, {f"loss_{name}": value for name, (_, value) in parts.items()} if len(parts) > 1 else {}


def reduction_losses(
    reducers: Sequence[Reducer],
    logits: jax.Array,
    aux: Any,
    targets: jax.Array,
    teacher: tuple[jax.Array, Any] | None,
) -> dict[str, tuple[float, jax.Array]]:
    """Returns {name: (default weight, value)} of the losses that reduction methods add to the network's own.

    Args:
      reducers: of the network, in the order of its plan (`reduction.installed`).

    Raises:
      UserError: two methods name a loss alike.
    """
    found = {}
    for cls in dict.fromkeys(map(type, reducers)):
        own = [(reducer, report) for reducer, report in zip(reducers, aux.steps, strict=True) if type(reducer) is cls]
        context = LossContext(
            tuple(report for _, report in own),
            tuple(reducer.step.keep_rate for reducer, _ in own),
            logits,
            targets,
            aux.tokens,
            teacher,
        )
        for name, value in cls.losses(context).items():
            if name in found:
                raise UserError(f"Two methods of one plan have a loss called {name!r}: rename one in its `losses`.")
            found[name] = (cls.loss_weights.get(name, 1.0), value)
    return found


def classes(kind: str, logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the loss of the classes: "cross_entropy", or "asymmetric" for images of several classes (ASL).

    The asymmetric loss is summed over the batch, as published.
    """
    if kind == "asymmetric":
        return losses.asymmetric_loss(logits, targets).sum()
    if kind == "cross_entropy":
        return optax.softmax_cross_entropy(logits, targets).mean()
    raise UserError(f"loss={kind!r} is unknown: use 'cross_entropy', or 'asymmetric' for images of several classes.")


def teach(parts: Split, params: Mapping[str, jax.Array], images: jax.Array) -> tuple[jax.Array, Any]:
    """Returns what a teacher says of the images, without a gradient."""
    return jax.lax.stop_gradient(merge(parts.graph, dict(params), parts.rest)(images))


def _tokens(config: Config, aux: Any, theirs: Any) -> jax.Array:
    student, teacher = aux.tokens, theirs.tokens
    if student.x.shape != teacher.x.shape or student.policy is None:
        raise UserError(
            "distill.tokens compares every patch with the teacher's, and this network has no token for every patch: "
            "set config.distill.tokens=0, or train a method that masks (dynamicvit) under a teacher of its own size."
        )
    first = student.x.shape[1] - student.assign.shape[1]
    kept = student.policy[:, first:]
    return losses.token_distillation(student.x[:, first:], teacher.x[:, first:], kept, kind=config.distill.tokens_kind)
