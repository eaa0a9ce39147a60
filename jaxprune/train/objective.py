"""The training objective of a classifier: its classes, its reduction methods' losses, and distillation."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxprune import losses
from jaxprune.errors import UserError, unknown
from jaxprune.mim.parts.teacher_targets import prepared
from jaxprune.nn.params import Split, merge
from jaxprune.preprocessing import Normalisation
from jaxprune.reduction import LossContext, Reducer

ASYMMETRIC, CROSS_ENTROPY = "asymmetric", "cross_entropy"

# A teacher's logits and aux on the same images.
TeacherOutputs = tuple[jax.Array, Any]


@dataclasses.dataclass(frozen=True)
class Objective:
    """The parts of a classifier's loss and their weights.

    Attributes:
      classes: "cross_entropy", or "asymmetric" for images with several labels.
      of_methods: weights of the reduction methods' losses, by name, which replace the methods' defaults.
      logits, tokens: weights of the distillation from a teacher.
      tokens_kind: kind of token distillation, "mse" or "kl" (`losses.token_distillation`).
      micro_batches: number of micro-batches of a step, whose losses are averaged.
    """

    classes: str = CROSS_ENTROPY
    of_methods: Mapping[str, float] = dataclasses.field(default_factory=dict)
    logits: float = 0.5
    tokens: float = 0.5
    tokens_kind: str = "mse"
    micro_batches: int = 1

    def __post_init__(self) -> None:
        if self.classes not in (ASYMMETRIC, CROSS_ENTROPY):
            raise unknown("loss", self.classes, (CROSS_ENTROPY, ASYMMETRIC))

    def __call__(
        self,
        reducers: Sequence[Reducer],
        logits: jax.Array,
        aux: Any,
        targets: jax.Array,
        teacher: TeacherOutputs | None = None,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns the loss of a batch, and its parts by name if there are several.

        Args:
          reducers: reducers of the network, in the order of its plan; () without a plan.
          logits, aux: outputs of the network.
          targets: class targets, (b, c).
          teacher: outputs of the teacher, if there is one.

        Raises:
          UserError: `of_methods` names a loss that no method of the plan has.
        """
        classes = class_loss(self.classes, logits, targets)
        if self.classes == ASYMMETRIC:
            classes = classes * self.micro_batches  # the mean over micro-batches is then the sum over the batch
        parts = {"classes": (1.0, classes)}
        added = reduction_losses(reducers, logits, aux, targets, teacher)
        for name in self.of_methods:
            if name not in added:
                raise unknown("loss of a reduction method", name, added)
        for name, (weight, value) in added.items():
            parts[name] = (self.of_methods.get(name, weight), value)
        if teacher is not None:
            parts["logits"] = (self.logits, losses.kl_distillation(logits, teacher[0]))
            if self.tokens:
                parts["tokens"] = (self.tokens, _token_loss(aux, teacher[1], self.tokens_kind))
        loss = jnp.stack([weight * value for weight, value in parts.values()]).sum()
        return loss, {f"loss_{name}": value for name, (_, value) in parts.items()} if len(parts) > 1 else {}


def reduction_losses(
    reducers: Sequence[Reducer], logits: jax.Array, aux: Any, targets: jax.Array, teacher: TeacherOutputs | None
) -> dict[str, tuple[float, jax.Array]]:
    """Returns {name: (default weight, value)} of the reduction methods' losses.

    Args:
      reducers: reducers of the network, in the order of its plan (`reduction.installed`).

    Raises:
      UserError: two methods have a loss of the same name.
    """
    weighted = {}
    for cls in dict.fromkeys(map(type, reducers)):
        pairs = [(reducer, report) for reducer, report in zip(reducers, aux.steps, strict=True) if type(reducer) is cls]
        context = LossContext(
            tuple(report for _, report in pairs),
            tuple(reducer.step.keep_rate for reducer, _ in pairs),
            logits,
            targets,
            aux.tokens,
            teacher,
            tuple(reducer for reducer, _ in pairs),
        )
        for name, value in cls.losses(context).items():
            if name in weighted:
                raise UserError(f"Two methods of one plan have a loss called {name!r}: rename one in its `losses`.")
            weighted[name] = (cls.loss_weights.get(name, 1.0), value)
    return weighted


def class_loss(kind: str, logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the classification loss; the asymmetric one is summed over the batch, as published (ASL)."""
    if kind == ASYMMETRIC:
        return losses.asymmetric_loss(logits, targets).sum()
    return optax.softmax_cross_entropy(logits, targets).mean()


def teacher_forward(
    teacher: Split, params: Mapping[str, jax.Array], images: jax.Array, normalised: Normalisation | None
) -> TeacherOutputs:
    """Returns a teacher's logits and aux on a batch of images, resized to its size, without a gradient.

    Args:
      normalised: the (mean, std) that the images were normalised with; None for those of the teacher.
    """
    network = merge(teacher.graph, dict(params), teacher.rest)
    return jax.lax.stop_gradient(network(prepared(network, images, normalised)))


def _token_loss(aux: Any, teacher_aux: Any, kind: str) -> jax.Array:
    student, teacher = getattr(aux, "tokens", None), getattr(teacher_aux, "tokens", None)
    if student is None or teacher is None or student.x.shape != teacher.x.shape or student.policy is None:
        raise UserError(
            "distill.tokens compares every patch with the teacher's, but this network lacks a token for every patch: "
            "set distill.tokens=0, or train a masking method (dynamicvit) with a teacher of the same size."
        )
    first = student.x.shape[1] - student.assign.shape[1]
    kept = student.policy[:, first:]
    return losses.token_distillation(student.x[:, first:], teacher.x[:, first:], kept, kind=kind)
