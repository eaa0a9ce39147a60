"""A copy of a framework's encoder, which training keeps and refreshes now and then."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int


class EncoderCopy(NamedTuple):
    """What training keeps for a framework that is called with `snapshot=`; a `train.state.Keeper`.

    Attributes:
      first: number of steps before the first refresh; until then the copy is the initial encoder.
      period: number of steps between later refreshes.
      prefix: prefix of the names of its parameters.
    """

    first: int
    period: int
    prefix: str = "encoder."

    name = "snapshot"

    def initial(self, params: Mapping[str, Array]) -> dict[str, Array]:
        """The parameters to copy."""
        return {name: array for name, array in params.items() if name.startswith(self.prefix)}

    def updated(
        self, kept: Mapping[str, Array], observed: Any, steps: Int[Array, ""], params: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The copy after `steps` steps, which led to `params`."""
        due = (steps >= self.first) & ((steps - self.first) % self.period == 0)
        return {name: jnp.where(due, params[name], array) for name, array in kept.items()}
