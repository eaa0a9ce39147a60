"""The gap between the gradients of cheaper pre-training and of standard MAE (PR-MIM, Fig. 4)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.nn.params import Split, merge


class Gap(NamedTuple):
    """The comparison of two gradients over their common parameters.

    Attributes:
      distance: L2 norm of their difference.
      reference_norm: L2 norm of the reference.
      cosine: cosine of the angle between them.
    """

    distance: Float[Array, ""]
    reference_norm: Float[Array, ""]
    cosine: Float[Array, ""]


def gradient_gap(gradients: Mapping[str, Array], reference: Mapping[str, Array]) -> Gap:
    """Compares gradients {dotted name: array} as concatenated vectors, in float32.

    Parameters of only one of them, such as PR-MIM's aggregation, are ignored.
    """
    shared = sorted(gradients.keys() & reference.keys())
    flat = lambda grads: jnp.concatenate([grads[name].astype(jnp.float32).reshape(-1) for name in shared])
    vector, reference_vector = flat(gradients), flat(reference)
    norm = jnp.linalg.norm(reference_vector)
    cosine = vector @ reference_vector / (jnp.linalg.norm(vector) * norm)
    return Gap(jnp.linalg.norm(vector - reference_vector), norm, cosine)


def loss_gradients(
    parts: Split, weights: Mapping[str, Array], images: Float[Array, "b H W c"], **draws: Any
) -> dict[str, Array]:
    """Returns the gradient of a framework's loss at `weights`.

    Args:
      parts: the split framework; only its structure and its fixed arrays are used.
      weights: {dotted name: array}; names that the framework lacks are ignored.
      images: normalised images.
      draws: key, noise, first; with the same noise every framework sees the same patches.
    """

    def loss(params):
        return merge(parts.graph, params, parts.rest)(images, **draws)[0]

    return jax.grad(loss)({name: weights[name] for name in parts.params})
