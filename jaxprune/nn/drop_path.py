"""Stochastic depth: a residual branch is dropped for some images of the batch."""

import jax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError


class DropPath(nnx.Module):
    """Drops the branch of each image with probability `rate` and rescales the others (Huang et al., 2016).

    Raises:
      UserError: the rate is not from 0 to below 1.
    """

    def __init__(self, rate: float = 0.0):
        if not 0 <= rate < 1:
            raise UserError(f"drop_path_rate={float(rate):g} is not a rate: use a number from 0 to below 1.")
        self.rate = float(rate)

    def __call__(self, x: Float[Array, "b ..."], key: PRNGKeyArray | None) -> Float[Array, "b ..."]:
        """Drops branches; without a key (evaluation) nothing is dropped."""
        if key is None or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        kept = jax.random.bernoulli(key, keep, (x.shape[0],) + (1,) * (x.ndim - 1))
        return x * (kept.astype(x.dtype) / keep)


def require_key(network: nnx.Module, key: PRNGKeyArray | None, *, drop_rate: float = 0.0) -> None:
    """Checks that a network, or a part of one, that drops at random in training has a key.

    Args:
      drop_rate: of its dropout.

    Raises:
      UserError: there is none.
    """
    if key is not None:
        return
    drops_branches = any(isinstance(node, DropPath) and node.rate for _, node in nnx.iter_graph(network))
    rates = {"drop_path_rate": drops_branches, "drop_rate": drop_rate}
    if names := [name for name, rate in rates.items() if rate]:
        raise UserError(
            f"The network drops {'branches' if drops_branches else 'features'} at random in training and needs a key: "
            f"pass key=jax.random.key(…), or build it with {' and '.join(f'{name}=0' for name in names)}."
        )
