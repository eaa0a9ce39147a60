"""Decisions of a network about its own computation: hard gates with the gradient of a softmax, and their masks."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped

from jaxprune.errors import UserError
from jaxprune.ops.resize import resize
from jaxprune.ops.straight_through import straight_through
from jaxprune.ops.tracing import numpy_of

_EPS = 1e-10  # of SAR's noise


class Gate(NamedTuple):
    """Decisions of one gate for a batch.

    Attributes:
      open: exactly 1 = compute, 0 = skip, with the gradient of the softmax: of maps (b, m, m, g) for g groups of
        channels, or of channels (b, g).
      logits: of the two alternatives, on the last axis.
    """

    open: Float[Array, "b *places g"]
    logits: Float[Array, "b *places g 2"]

    @property
    def density(self) -> Float[Array, "b"]:
        """The share of open decisions of each image."""
        return self.open.mean(tuple(range(1, self.open.ndim)))


def decide(
    logits: Float[Array, "b *places g 2"],
    *,
    computes: int,
    noise: Float[Array, "b *places g 2"] | None = None,
    temperature: float | Array = 1.0,
) -> Gate:
    """Chooses the larger logit, after adding noise if there is any.

    >>> decide(jnp.array([[[2.0, 1.0]]]), computes=0).open.tolist()
    [[1.0]]

    Args:
      computes: index of the alternative that means "compute".
      noise: Gumbel noise; None for the most probable decision.
      temperature: of the softmax that gives the gradient.
    """
    noisy_logits = logits if noise is None else logits + noise.astype(logits.dtype)
    return Gate(straight_through(noisy_logits / temperature)[..., computes], logits)


def gumbel(uniform: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns Gumbel noise from uniform random numbers, as SAR's code computes it.

    >>> round(float(gumbel(jnp.array(0.5))), 4)
    0.3665
    """
    return -jnp.log(_EPS - jnp.log(uniform + _EPS))


class Draws:
    """Hands out the noise of a network's gates, one after the other: given, drawn with a key, or none.

    Args:
      noise: Gumbel noise, one array a gate, in the order in which the network asks.
      key: for noise that is drawn; without both there is none.
    """

    def __init__(self, noise: Sequence[Array] | None = None, key: PRNGKeyArray | None = None):
        self._rest: Iterator[Array] | None = None if noise is None else iter(noise)
        self._key, self._count = key, 0

    def next(self, shape: tuple[int, ...]) -> Any:
        """The noise of the next gate.

        Raises:
          UserError: there are fewer arrays than gates, or the next has another shape.
        """
        self._count += 1
        if self._rest is not None:
            array = next(self._rest, None)
            if array is None or array.shape != shape:
                size = "missing" if array is None else f"of shape {array.shape}"
                raise UserError(f"The noise of gate {self._count} is {size}: give one array of shape {shape}.")
            return array
        return None if self._key is None else jax.random.gumbel(jax.random.fold_in(self._key, self._count), shape)


def on_map(open: Shaped[Array, "b m k g"], sides: tuple[int, int], channels: int) -> Shaped[Array, "b h w c"]:
    """Returns decisions about cells as a mask of a map: nearest cell, each group for its consecutive channels.

    >>> on_map(jnp.array([[[[1.0, 0.0]]]]), (1, 2), 4)[0, 0].tolist()
    [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
    """
    return jnp.repeat(resize(open, sides, "nearest"), channels // open.shape[-1], axis=-1)


def of_channels(open: Shaped[Array, "b g"], channels: int) -> Shaped[Array, "b 1 1 c"]:
    """Returns decisions about groups of consecutive channels as a mask of a map.

    >>> of_channels(jnp.array([[1.0, 0.0]]), 4)[0, 0, 0].tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    return jnp.repeat(open, channels // open.shape[-1], axis=-1)[:, None, None, :]


def reached(open: Shaped[Array, "b h w g"], *, stride: int = 1, padding: int = 0) -> Bool[Array, "b H W g"]:
    """Returns where a convolution's input is read, from where its output is computed.

    Output place i lies at input place i·stride, and reads `padding` places around it. Channels are read together, so
    all groups get the union over the groups.

    >>> reached(jnp.array([[[[1.0]], [[0.0]], [[0.0]]]]), padding=1)[0, :, 0, 0].tolist()
    [True, True, False]
    """
    union = (open > 0.5).any(-1)
    b, height, width = union.shape
    if stride > 1:
        spread = jnp.zeros((b, height, stride, width, stride), bool).at[:, :, 0, :, 0].set(union)
        union = spread.reshape(b, height * stride, width * stride)
    for axis in (1, 2):
        pads = [(0, 0)] * 3
        pads[axis] = (padding, padding)
        padded, side = jnp.pad(union, pads), union.shape[axis]
        shifted = [jax.lax.slice_in_dim(padded, step, step + side, axis=axis) for step in range(2 * padding + 1)]
        union = jnp.stack(shifted).any(0)
    return jnp.repeat(union[..., None], open.shape[-1], axis=-1)


def exponential(progress: float | Array, first: float, last: float) -> Any:
    """Returns the temperature after a share of the training, from `first` to `last` by a constant factor.

    >>> float(exponential(0.5, 4.0, 1.0))
    2.0
    """
    return first * (last / first) ** _clipped(progress)


def cosine(progress: float | Array, first: float, last: float) -> Any:
    """Returns the temperature after a share of the training, from `first` to `last` by half a cosine.

    >>> round(float(cosine(0.5, 4.0, 1.0)), 6)
    2.5
    """
    share = _clipped(progress)
    wave = numpy_of(share).cos(np.pi * share)
    return last + (first - last) * (1 + wave) / 2


def _clipped(progress: float | Array) -> Any:
    return jnp.clip(progress, 0, 1) if isinstance(progress, jax.Array) else np.clip(float(progress), 0, 1)
