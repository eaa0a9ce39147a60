"""The classifier of linear probing: BatchNorm without scale and offset, then one linear layer (MAE's protocol)."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxprune.measures.linear_head import LinearHead
from jaxprune.nn.batch_norm import BATCH_STATS

_EPS = 1e-6

Arrays = Mapping[str, jax.Array]


def classifier(key: jax.Array, width: int, num_classes: int) -> dict[str, jax.Array]:
    """Returns the initial parameters: a truncated normal of standard deviation 0.01, and a zero bias."""
    kernel = 0.01 * jax.random.truncated_normal(key, -2.0, 2.0, (width, num_classes))
    return {"head.kernel": kernel, "head.bias": jnp.zeros((num_classes,))}


def no_statistics(width: int) -> dict[str, jax.Array]:
    """Returns the initial running statistics."""
    return {"mean": jnp.zeros((width,)), "var": jnp.ones((width,))}


def loss(params: Arrays, features: jax.Array, labels: jax.Array) -> tuple[jax.Array, dict]:
    """Returns the cross-entropy of a training batch, its accuracy, and the statistics that it observed.

    Args:
      params: from `classifier`.
      features: (b, d) float32.
      labels: (b,) integers.
    """
    scaled, statistics = standardize_batch(features)
    predicted = _linear(params, scaled)
    value = optax.softmax_cross_entropy_with_integer_labels(predicted, labels).mean()
    return value, {"accuracy": (predicted.argmax(-1) == labels).mean(), BATCH_STATS: statistics}


def logits(params: Arrays, features: jax.Array, statistics: Arrays) -> jax.Array:
    """Returns the logits (b, c) of features (b, d) in evaluation, by running statistics."""
    return _linear(params, standardize(features, statistics))


def standardize_batch(x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """BatchNorm without scale and offset, in training: returns (b, d) normalised, mean and unbiased variance."""
    mean, var = x.mean(0), x.var(0)
    scaled = standardize(x, {"mean": mean, "var": var})
    return scaled, {"mean": mean, "var": var * (len(x) / max(len(x) - 1, 1))}


def standardize(x: jax.Array, statistics: Arrays) -> jax.Array:
    """The same in evaluation, by running statistics."""
    return (x - statistics["mean"][None, :]) * jax.lax.rsqrt(statistics["var"][None, :] + _EPS)


def folded(params: Arrays, statistics: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Returns kernel and bias of the linear layer equivalent to the norm and the classifier."""
    mean, var, kernel, bias = (
        np.asarray(array, np.float64)
        for array in (statistics["mean"], statistics["var"], params["head.kernel"], params["head.bias"])
    )
    kernel, bias = LinearHead(mean, np.sqrt(var + _EPS), kernel, bias).folded()
    return kernel.astype(np.float32), bias.astype(np.float32)


def _linear(params: Arrays, x: jax.Array) -> jax.Array:
    return x @ params["head.kernel"] + params["head.bias"][None, :]
