"""A cascade of networks that exist already: the cheapest sees every image, the next one those it is not sure of."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Real, UInt8

from jaxprune import flops
from jaxprune.dynamic.segments import Segment, Segmented, State, require_classes
from jaxprune.errors import UserError
from jaxprune.nn.host import Host
from jaxprune.nn.images import of_unit
from jaxprune.ops.resize import resize
from jaxprune.preprocessing import Preprocessing


class Cascade(Segmented):
    """Networks of any size, each dense or under a plan, as one network with an exit after each.

    >>> import jaxprune, numpy as np
    >>> sizes = dict(patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=3)
    >>> small, large = (
    ...     jaxprune.models.create("vit", img_size=side, **sizes, rngs=nnx.Rngs(0)) for side in (8, 16)
    ... )
    >>> Cascade([small, large])(np.zeros((2, 16, 16, 3), np.uint8)).shape
    (2, 2, 3)

    Args:
      networks: classifiers of the same classes, the cheapest first. Images have the size of the last one; each network
        sees them resized to its own and normalised for it.

    Raises:
      UserError: there is none, they have no classes in common, or one is dearer than the next.
    """

    def __init__(self, networks: Sequence[Any], *, rngs: Any = None):
        if not networks:
            raise UserError("A cascade needs networks: give for example the same one for 126 and for 224 pixels.")
        for network in networks:
            if getattr(network, "preprocessing", None) is None:
                raise UserError(
                    f"A {type(network).__name__} does not say how its images are prepared: set preprocessing."
                )
        require_classes([network.num_classes for network in networks])
        costs = [_gmacs(network) for network in networks] if len(networks) > 1 else []
        if costs != sorted(costs):
            raise UserError(
                f"The networks of a cascade cost {', '.join(f'{cost:.3g}' for cost in costs)} GMACs: put the cheapest "
                "first."
            )
        self.networks = nnx.List(networks)
        self.preprocessing, self.num_classes = networks[-1].preprocessing, networks[-1].num_classes

    def begin(self, pixels: UInt8[Array, "b *sides c"]) -> State:
        """See `Segmented`; the state is the pixels.

        Raises:
          UserError: they are of a floating-point dtype, such as normalised images.
        """
        state = jnp.asarray(pixels)
        if jnp.issubdtype(state.dtype, jnp.floating):
            raise UserError(
                f"A cascade normalises pixels for each of its networks, and these images are {state.dtype}: give "
                "pixels from 0 to 255, uint8, which are not normalised."
            )
        return state

    def segments(self) -> tuple[Segment, ...]:
        """See `Segmented`; there is one for each network."""
        return tuple(Segment(_through(index), _gmacs(network)) for index, network in enumerate(self.networks))


def _through(index: int) -> Any:
    def call(cascade: Cascade, pixels: jax.Array) -> tuple[jax.Array, jax.Array]:
        network = cascade.networks[index]
        logits, _ = network(resized(pixels, network.preprocessing))
        return pixels, logits

    return call


def resized(pixels: Real[Array | np.ndarray, "b *sides c"], record: Preprocessing) -> Float[Array, "b *size c"]:
    """Returns pixels from 0 to 255, of any size, as a network of a cascade reads them: of its size, and normalised.

    Args:
      record: of the network.
    """
    images = jnp.asarray(pixels, jnp.float32) / 255
    if images.shape[1:-1] != record.sides:
        images = jnp.clip(resize(images, record.sides, "bicubic", antialias=True), 0, 1)
    return of_unit(images, record.mean, record.std)


def _gmacs(network: Any) -> float:
    return (
        flops.of_model(network).total / 1e9
        if isinstance(network, Host)
        else flops.convnet(network, network.preprocessing.sides) / 1e9
    )
