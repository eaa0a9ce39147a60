"""How far the gradient of cheaper pre-training is from that of standard MAE (PR-MIM, Fig. 4)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.nn.params import Split, merge


class Gap(NamedTuple):
    """Two gradients compared over the parameters that both have.

    Attributes:
      distance: L2 norm of their difference.
      reference_norm: L2 norm of the reference.
      cosine: of the angle between them.
    """

    distance: Float[Array, ""]
    reference_norm: Float[Array, ""]
    cosine: Float[Array, ""]


def gradient_gap(gradients: Mapping[str, Array], reference: Mapping[str, Array]) -> Gap:
    """Compares gradients {dotted name: array} as one long vector, in float32.

    What only one of them has, such as PR-MIM's aggregation, does not count.
    """
    shared = sorted(gradients.keys() & reference.keys())
    flat = lambda grads: jnp.concatenate([grads[name].astype(jnp.float32).reshape(-1) for name in shared])
    ours, theirs = flat(gradients), flat(reference)
    norm = jnp.linalg.norm(theirs)
    cosine = ours @ theirs / (jnp.linalg.norm(ours) * norm)
    return Gap(jnp.linalg.norm(ours - theirs), norm, cosine)


def loss_gradients(
    parts: Split, weights: Mapping[str, Array], images: Float[Array, "b H W c"], **drawn: Any
) -> dict[str, Array]:
    """Returns the gradient of a framework's loss at `weights`.

    Args:
      parts: the framework taken apart; only its structure and its fixed tables are read.
      weights: {dotted name: array}, of which those are taken that the framework has.
      images: normalised.
      drawn: key, noise, first: with the same noise every framework sees the same patches.
    """

    def loss(params):
        return merge(parts.graph, params, parts.rest)(images, **drawn)[0]

    return jax.grad(loss)({name: weights[name] for name in parts.params})
