"""Losses that hold the computation of a network with gates at a target."""

from collections.abc import Iterable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def refinement_loss(gates: Iterable[Float[Array, "..."]], target: float, weight: float = 10.0) -> Float[Array, ""]:
    """Returns the weighted mean over the masks of the squared distance of their density from a target (SAR).

    >>> round(float(refinement_loss([jnp.ones((1, 2, 2, 1)), jnp.zeros((1, 2, 2, 1))], 0.5, 1.0)), 6)
    0.25

    Args:
      gates: decisions for a batch, 1 = refine.
      target: share of open decisions.
    """
    return weight * jnp.stack([jnp.square(target - gate.mean()) for gate in gates]).mean()


def budget_loss(
    total: Float[Array, ""], shares: Float[Array, "m"], *, full: float, target: float, progress: float | Array
) -> Float[Array, ""]:
    """Returns the squared distance of the cost from a target, plus how far blocks leave bounds around it (LAUDNet).

    The bounds close on the target at the start of the training and are gone after a third of it.

    >>> budget = dict(full=4.0, target=0.5, progress=0.0)
    >>> round(float(budget_loss(jnp.array(3.0), jnp.array([0.5, 1.0]), **budget)), 6)
    0.1875

    Args:
      total: multiply-accumulates of an image.
      shares: of the multiply-accumulates of each block that are computed.
      full: multiply-accumulates of the static network.
      target: share of `full` to compute.
      progress: share of the training that is over, from 0 to 1.
    """
    tight = jnp.square(jnp.cos(jnp.pi / 2 * jnp.clip(progress / 0.33, 0, 1)))
    above = jnp.square(jnp.maximum(0, shares - (1 - tight * (1 - target))))
    below = jnp.square(jnp.maximum(0, tight * target - shares))
    return jnp.square(total / full - target) + (above + below).mean()
