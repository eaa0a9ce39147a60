"""Learning-rate schedules, weight-decay masks, and optimizers.

Parameters are one flat dict {dotted name: array}; masks and scales are dicts with the same names.
"""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxprune.errors import UserError, nearest
from jaxprune.ops.tracing import numpy_of

Schedule = Callable[[Any], Any]


def effective_lr(base_lr: float, batch_size: int, base_batch_size: int = 256) -> float:
    """Scales a base learning rate linearly with the global batch size: base_lr · batch_size / base_batch_size."""
    return base_lr * batch_size / base_batch_size


def warmup_cosine(
    lr: float,
    min_lr: float,
    warmup_epochs: float,
    epochs: float,
    steps_per_epoch: float,
    *,
    warmup_lr: float = 0.0,
    cosine_from_start: bool = False,
) -> Schedule:
    """Builds MAE's schedule: a linear warm-up, then a half-cycle cosine, updated at every step.

    The schedule takes a step (Python, NumPy float64 or a traced array) and returns its learning rate.

    Args:
      lr: learning rate at the end of the warm-up.
      min_lr: learning rate at the end.
      warmup_epochs: length of the warm-up.
      epochs: total length, including the warm-up.
      steps_per_epoch: steps in an epoch.
      warmup_lr: learning rate at step 0.
      cosine_from_start: the cosine runs from step 0 and the warm-up covers its beginning, as in SimMIM, DeiT
        and timm; otherwise it starts when the warm-up ends.

    Raises:
      UserError: the warm-up is longer than the training.
    """
    _check_warmup(warmup_epochs, epochs)
    start = 0 if cosine_from_start else warmup_epochs

    def schedule(step):
        xp = numpy_of(step)
        epoch = step / steps_per_epoch
        progress = xp.minimum((epoch - start) / (epochs - start), 1.0) if epochs > start else 1.0
        cosine = min_lr + (lr - min_lr) * 0.5 * (1.0 + xp.cos(np.pi * progress))
        return _warm_up(epoch, cosine, lr, warmup_lr, warmup_epochs)

    return schedule


def warmup_multistep(
    lr: float,
    warmup_epochs: float,
    milestones: Sequence[float],
    steps_per_epoch: float,
    *,
    warmup_lr: float = 0.0,
    gamma: float = 0.1,
) -> Schedule:
    """Builds a linear warm-up from `warmup_lr`, then `lr`, multiplied by `gamma` at each milestone epoch (SimMIM)."""

    def schedule(step):
        epoch = step / steps_per_epoch
        passed = sum((epoch >= milestone) * 1.0 for milestone in milestones)
        return _warm_up(epoch, lr * gamma**passed, lr, warmup_lr, warmup_epochs)

    return schedule


def frozen_until(schedule: Schedule, step: float) -> Schedule:
    """Returns `schedule` with a learning rate of 0 before `step`, which freezes the parameters until then."""

    def delayed(now):
        return numpy_of(now).where(now < step, 0.0, schedule(now))

    return delayed


def decay_mask(params: Mapping[str, jax.Array], exempt: Sequence[str] = ()) -> dict[str, bool]:
    """Returns which parameters decay: those of two or more axes that are not biases and match no pattern of `exempt`.

    Patterns are `fnmatch` patterns on the whole name: MAE fine-tunes with exempt=("pos_embed", "cls_token"), and
    pre-trains without.
    """
    return {
        name: np.ndim(value) > 1
        and name.rpartition(".")[2] != "bias"
        and not any(fnmatchcase(name, pattern) for pattern in exempt)
        for name, value in params.items()
    }


def layer_scales(layers: Mapping[str, int], depth: int, decay: float) -> dict[str, float]:
    """Returns the learning-rate scale of every parameter under layer-wise decay: decay^(layers from the head).

    Args:
      layers: of the parameters, see `nn.Host.parameter_layers`; those after the blocks, of layer depth + 1, keep 1.
      depth: of the network, in blocks.
      decay: factor from one layer to the layer below.
    """
    return {name: decay ** (depth + 1 - layer) for name, layer in layers.items()}


def adamw(
    schedule: Schedule | float,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decay_mask: Mapping[str, bool] | None = None,
    layer_scales: Mapping[str, float] | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    clip_norm: float | None = None,
    frozen: Sequence[str] = (),
) -> optax.GradientTransformation:
    """Builds AdamW with torch's conventions: p -= lr · scale · (Adam's direction + weight_decay · p).

    Args:
      schedule: learning rate by step, or a constant.
      b1, b2, eps: Adam's; eps is added outside the square root.
      weight_decay: decoupled, multiplied by the learning rate.
      decay_mask: which parameters decay; None means all.
      layer_scales: scales of update and decay by name; None means 1.
      schedules: learning rates of some parameters by name, which replace `schedule`.
      clip_norm: maximum global norm of the gradients (of trained parameters), or None.
      frozen: `fnmatch` patterns of parameters that are not trained and have no moments.
    """
    direction = [optax.scale_by_adam(b1=b1, b2=b2, eps=eps), _decay(weight_decay, decay_mask)]
    return _optimizer(direction, schedule, layer_scales, schedules, clip_norm, frozen)


def lamb(
    schedule: Schedule | float,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    decay_mask: Mapping[str, bool] | None = None,
    layer_scales: Mapping[str, float] | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    clip_norm: float | None = None,
    frozen: Sequence[str] = (),
) -> optax.GradientTransformation:
    """Builds LAMB: p -= lr · scale · ‖p‖ / ‖u‖ · u, with AdamW's direction u of a parameter (You et al., 2020, Alg. 2).

    The trust ratio ‖p‖ / ‖u‖ comes before the scale and the learning rate, so that it does not cancel them. The
    arguments are those of `adamw`.
    """
    adam = optax.scale_by_adam(b1=b1, b2=b2, eps=eps)
    direction = [adam, _decay(weight_decay, decay_mask), optax.scale_by_trust_ratio()]
    return _optimizer(direction, schedule, layer_scales, schedules, clip_norm, frozen)


def with_constraints(
    transformation: optax.GradientTransformation, constraints: Mapping[str, Callable[[jax.Array], jax.Array]]
) -> optax.GradientTransformation:
    """Extends an optimizer so that its updates bring some parameters back to the values that they may have.

    Args:
      transformation: the optimizer.
      constraints: {name of a parameter: function from its value after an update to the allowed one}.
    """

    def update(updates, params):
        allowed = {name: nearest(params[name] + updates[name]) for name, nearest in constraints.items()}
        return {**updates, **{name: value - params[name] for name, value in allowed.items()}}

    return optax.chain(transformation, optax.stateless(update)) if constraints else transformation


def lars(
    schedule: Schedule | float,
    *,
    momentum: float = 0.9,
    trust: float = 0.001,
    weight_decay: float = 0.0,
    decay_mask: Mapping[str, bool] | None = None,
    layer_scales: Mapping[str, float] | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    clip_norm: float | None = None,
    frozen: Sequence[str] = (),
) -> optax.GradientTransformation:
    """Builds LARS as in MAE's linear probe: momentum over trust-scaled gradients, then p -= lr · scale · momentum.

    Parameters of one axis get no trust ratio trust · ‖p‖ / ‖g‖ and, without a `decay_mask`, no weight decay. The other
    arguments are those of `adamw`.
    """

    def matrices(params):
        return jax.tree.map(lambda p: jnp.ndim(p) > 1, params)

    direction = [
        optax.add_decayed_weights(weight_decay, mask=matrices if decay_mask is None else dict(decay_mask)),
        optax.masked(optax.scale_by_trust_ratio(trust_coefficient=trust), matrices),
        optax.trace(momentum),
    ]
    return _optimizer(direction, schedule, layer_scales, schedules, clip_norm, frozen, numbered=False)


def sgd(
    schedule: Schedule | float,
    *,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    decay_mask: Mapping[str, bool] | None = None,
    layer_scales: Mapping[str, float] | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    clip_norm: float | None = None,
    frozen: Sequence[str] = (),
) -> optax.GradientTransformation:
    """Builds SGD with Nesterov's momentum over gradients plus weight decay, as in PyTorch.

    Without a `decay_mask` all parameters decay. The other arguments are those of `adamw`.
    """
    mask = None if decay_mask is None else dict(decay_mask)
    direction = [optax.add_decayed_weights(weight_decay, mask=mask), optax.trace(momentum, nesterov=True)]
    return _optimizer(direction, schedule, layer_scales, schedules, clip_norm, frozen, numbered=False)


# The optimizers by name.
OPTIMIZERS = {"adamw": adamw, "lamb": lamb, "lars": lars, "sgd": sgd}


def _optimizer(
    direction: Sequence[optax.GradientTransformation],
    schedule: Schedule | float,
    layer_scales: Mapping[str, float] | None,
    schedules: Mapping[str, Schedule] | None,
    clip_norm: float | None,
    frozen: Sequence[str],
    *,
    numbered: bool = True,
) -> optax.GradientTransformation:
    """Completes an optimizer from its direction; see `adamw`.

    Args:
      numbered: whether clipping and scales have a place in the state, and so in checkpoints, also when there are none.
    """
    absent = optax.identity() if numbered else None
    clipping = absent if clip_norm is None else optax.clip_by_global_norm(clip_norm)
    scales = absent if layer_scales is None else _scale_by_name(layer_scales)
    rates = _learning_rates(schedule, schedules) if schedules else optax.scale_by_learning_rate(schedule)
    parts = [part for part in (clipping, *direction, scales, rates) if part is not None]
    return _trainable_only(optax.chain(*parts), frozen)


def _decay(weight_decay: float, mask: Mapping[str, bool] | None) -> optax.GradientTransformation:
    return optax.add_decayed_weights(weight_decay, mask=None if mask is None else dict(mask))


def _trainable_only(
    transformation: optax.GradientTransformation, frozen: Sequence[str]
) -> optax.GradientTransformation:
    if not frozen:
        return transformation

    def labels(params):
        for pattern in frozen:
            if not any(fnmatchcase(name, pattern) for name in params):
                raise UserError(
                    f"The frozen pattern {pattern!r} matches no parameter.{nearest(pattern, params)} "
                    "Patterns match the whole dotted name; '*' stands for any characters."
                )
        return {
            name: "frozen" if any(fnmatchcase(name, pattern) for pattern in frozen) else "trained" for name in params
        }

    return optax.multi_transform({"trained": transformation, "frozen": optax.set_to_zero()}, labels)


def _scale_by_name(scales: Mapping[str, float]) -> optax.GradientTransformation:
    def update(updates, params=None):
        # A frozen parameter is an empty node here, so every value is mapped as a tree.
        return {name: jax.tree.map(lambda u, s=scales[name]: u * s, value) for name, value in updates.items()}

    return optax.stateless(update)


def _learning_rates(schedule: Schedule | float, schedules: Mapping[str, Schedule]) -> optax.GradientTransformation:
    def update(updates, state, params=None):
        # One value per schedule, however many parameters share it.
        rates = {rate: rate(state.count) for rate in {schedule, *schedules.values()} if callable(rate)}

        def step(name, value):
            own_rate = schedules.get(name, schedule)
            rate: Any = rates[own_rate] if callable(own_rate) else own_rate
            return jax.tree.map(lambda u: -rate * u, value)

        count = optax.safe_increment(state.count)
        return {name: step(name, value) for name, value in updates.items()}, optax.ScaleByScheduleState(count)

    return optax.GradientTransformation(lambda params: optax.ScaleByScheduleState(jnp.zeros((), jnp.int32)), update)


def _warm_up(epoch: Any, after: Any, lr: float, warmup_lr: float, warmup_epochs: float) -> Any:
    if not warmup_epochs:
        return after
    during = warmup_lr + (lr - warmup_lr) * epoch / warmup_epochs
    return numpy_of(epoch).where(epoch < warmup_epochs, during, after)


def _check_warmup(warmup_epochs: float, epochs: float) -> None:
    if warmup_epochs > epochs:
        raise UserError(
            f"warmup_epochs={warmup_epochs} is longer than the training of {epochs} epochs; shorten the warm-up."
        )


def frozen_names(layers: Mapping[str, int], depth: int, trainable_blocks: int) -> tuple[str, ...]:
    """Returns the parameters that do not train where only the last blocks do (partial fine-tuning, PR-MIM Fig. 6).

    Args:
      layers: of the parameters, see `nn.Host.parameter_layers`.
      depth: of the network, in blocks.
      trainable_blocks: how many of the last blocks train; -1: all, and what is in front of them.

    Raises:
      UserError: there are fewer blocks.
    """
    if trainable_blocks == -1:
        return ()
    if not 0 <= trainable_blocks <= depth:
        raise UserError(
            f"trainable_blocks={trainable_blocks} of a network of {depth} blocks: use 0 to {depth}, or -1 for all."
        )
    return tuple(name for name, layer in layers.items() if layer <= depth - trainable_blocks)
