"""Networks in segments: each ends with an exit, and what an image needs to go on is a pytree, batch axis first."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray, UInt8

from jaxprune.errors import UserError, quoted
from jaxprune.losses import exit_losses
from jaxprune.preprocessing import Preprocessing

State = Any
Pixels = UInt8[Array, "b *sides c"] | Float[Array, "b *sides c"]


class Loss(NamedTuple):
    """The loss of a batch.

    Attributes:
      value: to minimise.
      logits: of all exits.
      parts: of the loss, and what else a log should show.
    """

    value: Float[Array, ""]
    logits: Float[Array, "m b c"]
    parts: dict[str, Array]


class Segment(NamedTuple):
    """A part of a network up to an exit.

    Attributes:
      call: (network, state) -> (state, logits), for a batch of images; every row only depends on its own image.
      cost: multiply-accumulates of the segment, in units of 10⁹.
    """

    call: Callable[[Any, State], tuple[State, Float[Array, "b c"]]]
    cost: float


class Segmented(nnx.Module):
    """Base class of networks with exits.

    A subclass defines `segments` and `begin`, and sets `preprocessing`, that of the images that it takes.
    """

    preprocessing: Preprocessing
    _dial: tuple[tuple[float, ...], ...] = ()

    @property
    def dial(self) -> tuple[tuple[float, ...], ...]:
        """Thresholds to serve under, one an exit each, from the most exact to the fastest; saved with the network."""
        return self._dial

    def set_dial(self, steps: Sequence[Sequence[float] | np.ndarray]) -> None:
        """Sets the steps of `dial`.

        Raises:
          UserError: the thresholds of a step are not one finite number an exit, or the last exit would keep images.
        """
        exits = len(self.segments())
        rows = [np.asarray(step, float) for step in steps]
        for row in rows:
            if row.shape != (exits,) or not np.isfinite(row).all():
                raise UserError(f"{exits} exits need as many finite thresholds a step, not {quoted(row.tolist())}.")
            if row[-1] > 0:
                raise UserError(f"All images leave at the last exit: its threshold is 0 or less, and not {row[-1]:g}.")
        self._dial = tuple(tuple(row.tolist()) for row in rows)

    def segments(self) -> tuple[Segment, ...]:
        """The segments, in order."""
        raise NotImplementedError

    def begin(self, pixels: Pixels) -> State:
        """The state that enters the first segment, from pixels from 0 to 255."""
        raise NotImplementedError

    def costs(self) -> tuple[float, ...]:
        """Multiply-accumulates of an image that leaves at each exit, in units of 10⁹."""
        costs, total = [], 0.0
        for segment in self.segments():
            total += segment.cost
            costs.append(total)
        return tuple(costs)

    def __call__(self, pixels: Pixels) -> Float[Array, "m b c"]:
        """Computes the logits of all exits for all images; for training, and to choose thresholds."""
        state, logits = self.begin(pixels), []
        for segment in self.segments():
            state, values = segment.call(self, state)
            logits.append(values)
        return jnp.stack(logits)

    def loss(
        self,
        images: Pixels,
        targets: Float[Array, "b c"],
        *,
        key: PRNGKeyArray | None = None,
        progress: float | Array = 0.0,
    ) -> Loss:
        """The loss of a batch in training: by default the sum of the exits' cross-entropies.

        Args:
          images: augmented and normalised, or pixels.
          targets: probabilities of the classes.
          key: for what is random in training.
          progress: share of the training that is over, for what changes during it.
        """
        logits = self(images)
        return Loss(exit_losses(logits, targets).sum(), logits, {})


def require_classes(counts: Sequence[int]) -> None:
    """Refuses exits of different classes.

    Raises:
      UserError: see above, or there are no classes.
    """
    if len(set(counts)) != 1 or not counts[0]:
        raise UserError(
            f"The exits predict {', '.join(map(str, counts))} classes: give networks with a head for the same classes."
        )
