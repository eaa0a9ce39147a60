"""Networks with gates: the outputs and the cost of an image depend on decisions that the network takes for it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.dynamic.parts.gates import Draws, Gate
from jaxprune.dynamic.segments import Pixels, Segment, Segmented, State
from jaxprune.nn import BatchNorm
from jaxprune.nn.images import as_input
from jaxprune.nn.tensor_rules import Rule, batch_norm, convolution, convolution_back


class GatedOutput(NamedTuple):
    """What a network with gates computes for a batch.

    Attributes:
      logits: of the classes.
      gates: in the order in which the network decides, {dotted name: decisions}.
      densities: shares of what is computed, a tree whose leaves have an entry an image; for `macs`.
    """

    logits: Float[Array, "b c"]
    gates: dict[str, Gate]
    densities: Any


class Ledger(NamedTuple):
    """Multiply-accumulates of a network with gates; differentiable.

    Attributes:
      blocks: of each gated block, with what its gates themselves need.
      dense: of each gated block if all gates are open.
      fixed: of everything else.
    """

    blocks: Float[Array, "m *b"]
    dense: Float[Array, "m"]
    fixed: float

    @property
    def total(self) -> Float[Array, "*b"]:
        """Of the whole network."""
        return self.blocks.sum(0) + self.fixed

    @property
    def shares(self) -> Float[Array, "m *b"]:
        """Of each gated block, relative to all gates open."""
        return self.blocks / self.dense.reshape(-1, *(1,) * (self.blocks.ndim - 1))


class GatedNetwork(Segmented):
    """Base class of networks whose gates decide what to compute for each image; one exit, after everything.

    A subclass defines `of_images`, `macs` and `dense_macs`.
    """

    dtype: Any
    preprocessing: Any

    def gated(
        self,
        pixels: Pixels,
        *,
        noise: Sequence[Array] | None = None,
        key: PRNGKeyArray | None = None,
        temperature: float | Array = 1.0,
        train: bool = False,
    ) -> GatedOutput:
        """Computes logits and decisions.

        Args:
          pixels: from 0 to 255, of an integer dtype; or normalised images.
          noise: Gumbel noise of the gates, in their order; see `Gate.logits` for its shapes.
          key: draws that noise; without both, gates take the more probable decision.
          temperature: of the softmax behind the gates' gradient.
          train: normalises by the statistics of the batch, and updates the running ones.
        """
        images = as_input(jnp.asarray(pixels), self.preprocessing).astype(self.dtype or jnp.float32)
        return self.of_images(images, Draws(noise, key), temperature, train=train)

    def of_images(
        self, images: Float[Array, "b h w c"], draws: Draws, temperature: float | Array, *, train: bool
    ) -> GatedOutput:
        """The same for normalised images."""
        raise NotImplementedError

    def macs(self, densities: Any) -> Ledger:
        """Multiply-accumulates under densities: those of images, or their means over a batch."""
        raise NotImplementedError

    def batch_macs(self, output: GatedOutput) -> Ledger:
        """Multiply-accumulates an image as the publications count them: from the batch's mean densities."""
        return self.macs(jax.tree.map(lambda density: density.mean(), output.densities))

    def image_macs(self, output: GatedOutput) -> Float[Array, "b"]:
        """Multiply-accumulates of each image of the batch by its own densities."""
        return self.macs(output.densities).total

    def begin(self, pixels: Pixels) -> State:
        """See `Segmented`; the state is the pixels."""
        return jnp.asarray(pixels)

    def segments(self) -> tuple[Segment, ...]:
        """See `Segmented`: one, with the cost of all gates open."""
        return (Segment(_whole, self.dense_macs / 1e9),)

    @property
    def dense_macs(self) -> float:
        """Multiply-accumulates of an image with all gates open."""
        raise NotImplementedError

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of the published files."""
        return (*batch_norms(self), Rule("{any}.weight", "{any}.kernel", convolution, convolution_back), _SAME)


_SAME = Rule("{any}", "{any}")


def _whole(model: GatedNetwork, state: State) -> tuple[State, jax.Array]:
    return state, model.gated(state).logits


def batch_norms(model: Any) -> list[Rule]:
    """Returns the rules of all batch norms of a network, which other layers' names do not tell apart."""
    places = [".".join(map(str, path)) for path, module in nnx.iter_graph(model) if isinstance(module, BatchNorm)]
    return [rule for place in places for rule in batch_norm(place, place)]
