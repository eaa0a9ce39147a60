"""Maps rows of reduced tokens back to a dense patch map."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int, Shaped


def unmerge(x_rows: Shaped[Array, "b n d"], assign: Int[Array, "b p"], fill: float = 0.0) -> Shaped[Array, "b p d"]:
    """Returns for every patch the row that holds it, and `fill` where it was dropped.

    Args:
      x_rows: the rows after the prefix, `tokens.x[:, num_prefix_tokens:]` or anything computed from them.
      assign: the row of each patch, -1 = dropped, as in `Tokens.assign` and a model's `aux.assign`.

    >>> import jax.numpy as jnp
    >>> unmerge(jnp.array([[[5.0], [7.0]]]), jnp.array([[1, -1, 0, 1]]))[0, :, 0].tolist()
    [7.0, 0.0, 5.0, 7.0]
    """

    def one(rows, assign):
        return jnp.where((assign < 0)[:, None], jnp.asarray(fill, rows.dtype), rows[jnp.maximum(assign, 0)])

    return jax.vmap(one)(x_rows, assign)
