"""The keep rates of a recovery: from all tokens down to those of the plan, or several in turn for one network."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxprune import reduction
from jaxprune.errors import UserError
from jaxprune.nn.around_host import host_of
from jaxprune.nn.params import split
from jaxprune.ops.host_random import host_generator
from jaxprune.reduction import At, Plan, Step
from jaxprune.reduction.parts.plan_text import INPUT
from jaxprune.reduction.parts.step_sizes import Rate


def eased(model: Any, share: float) -> Plan:
    """Returns the plan of a network with a share of its reduction: 0 keeps all patches, 1 is the plan itself.

    >>> import jaxprune; from flax import nnx
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=3, num_heads=2)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> fast = reduction.apply(model, Plan("topk", keep_rate=0.5, reduction_loc=(1, 2)))
    >>> eased(fast, 0.5).text
    'topk@1:keep_rate=0.75+topk@2:keep_rate=0.625'
    """
    if share == 1:
        return model.plan
    host = host_of(model)
    depth = len(host.sites(model.preprocessing.sides))
    placed = {reducer.step.layer: reducer.step for reducer in reduction.installed(model)}
    if host.pruner is not None:
        placed[INPUT] = host.pruner.step
    return Plan(steps=[_eased_step(at, placed[at.layer], share) for at in model.plan.steps_for(depth)])


def _eased_step(at: At, step: Step, share: float) -> At:
    num_patches = math.prod(step.grid)
    raised = lambda count: math.ceil(num_patches - share * (num_patches - count))
    options = at.reducer_class.with_counts(dict(at.options), raised)
    return at.changed(amount=Rate(1 - share * (1 - step.keep_rate)), options=options.items())


def falling(model: Any, steps: int, share: float, stages: int) -> Callable[[int], Plan]:
    """Returns the plan of each step: over the first `share` of the steps the plan of `model` sets in, in `stages`."""
    plans = [eased(model, (stage + 1) / (stages + 1)) for stage in range(stages)] + [model.plan]
    length = max(share * steps, 1e-9)
    return lambda step: plans[min(int(step / length * stages), stages)]


def in_turn(model: Any, keep_rates: Sequence[float], seed: int) -> Callable[[int], Plan]:
    """Returns the plan of each step, with a keep rate drawn from `keep_rates`, the same one at each repetition."""
    plans = [model.plan.with_keep_rate(rate) for rate in keep_rates]
    return lambda step: plans[host_generator(seed, step).integers(len(plans))]


def require_same_parameters(model: Any, reduced: Any) -> None:
    """Refuses a plan whose method has parameters for a number of tokens: they would not fit other rates.

    Raises:
      UserError: see above.
    """
    shapes, eased_shapes = (jax.tree.map(jnp.shape, split(network).params) for network in (model, reduced))
    if shapes != eased_shapes:
        raise UserError(
            f"The plan {model.plan} has parameters for its number of tokens, which do not fit other keep rates: use "
            "easing=0 and no keep_rates."
        )
