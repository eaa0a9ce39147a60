"""A linear classifier of precomputed features: multinomial logistic regression."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int


class LinearHead(NamedTuple):
    """A linear classifier of standardised features.

    Attributes:
      mean, scale: mean and standard deviation of the training features.
      kernel, bias: parameters of the linear layer.
    """

    mean: Float[np.ndarray, "d"]
    scale: Float[np.ndarray, "d"]
    kernel: Float[np.ndarray, "d c"]
    bias: Float[np.ndarray, "c"]

    def logits(self, features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n c"]:
        """The logits of every class."""
        return ((features - self.mean) / self.scale) @ self.kernel + self.bias

    def folded(self) -> tuple[Float[np.ndarray, "d c"], Float[np.ndarray, "c"]]:
        """The kernel and bias of the same classifier for features that are not standardised."""
        kernel = self.kernel / self.scale[:, None]
        return kernel, self.bias - self.mean @ kernel

    def classes(self, features: Float[np.ndarray, "n d"]) -> Int[np.ndarray, "n"]:
        """The class with the largest logit."""
        return self.logits(features).argmax(-1)


def fit_linear_head(
    features: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, "n"],
    num_classes: int,
    *,
    l2: float = 1e-2,
    steps: int = 100,
) -> LinearHead:
    """Fits a linear head by L-BFGS on all features at once; the same features give the same head.

    >>> rows = np.array([[0.0], [1.0], [4.0], [5.0]], np.float32)
    >>> fit_linear_head(rows, np.array([0, 0, 1, 1]), 2).classes(rows)
    array([0, 0, 1, 1])

    Args:
      labels: classes from 0.
      l2: weight of half the squared kernel in the mean loss, with features of unit variance.
      steps: maximum number of L-BFGS steps; it stops when the gradient is below 1e-5.
    """
    mean, scale = features.mean(0), np.maximum(features.std(0), 1e-6)
    x, y = jnp.asarray((features - mean) / scale, jnp.float32), jnp.asarray(labels)

    def loss(params):
        logits = x @ params["kernel"] + params["bias"][None]
        data = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return data + 0.5 * l2 * jnp.square(params["kernel"]).sum()

    optimizer = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def unfinished(carry):
        _, state, step = carry
        gradient = optax.tree.norm(optax.tree.get(state, "grad"))
        return (step == 0) | ((step < steps) & (gradient > 1e-5))

    def advance(carry):
        params, state, step = carry
        value, grad = value_and_grad(params, state=state)
        updates, state = optimizer.update(grad, state, params, value=value, grad=grad, value_fn=loss)
        return optax.apply_updates(params, updates), state, step + 1

    @jax.jit
    def fit(params):
        return jax.lax.while_loop(unfinished, advance, (params, optimizer.init(params), 0))[0]

    params = fit({"kernel": jnp.zeros((features.shape[1], num_classes)), "bias": jnp.zeros(num_classes)})
    return LinearHead(mean, scale, np.asarray(params["kernel"]), np.asarray(params["bias"]))
