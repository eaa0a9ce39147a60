"""Representation Shift: keep the rows that a layer moves furthest (Choi et al., 2025)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.errors import unknown
from jaxprune.nn.block_cost import Where
from jaxprune.reduction.parts.base import Reducer
from jaxprune.reduction.parts.keep_rows import best, keep_rows, present, unchanged

# Where a reducer acts that reads what the layer did to the rows.
LAYERS: dict[str, Where] = {"mlp": "behind", "attention": "after"}


def shift(before: Float[Array, "b n d"], after: Float[Array, "b n d"]) -> Float[Array, "b n"]:
    """The Euclidean distance between two states of each row, in float32 and without gradient.

    >>> import jax.numpy as jnp
    >>> shift(jnp.zeros((1, 2, 2)), jnp.array([[[3.0, 4.0], [0.0, 1.0]]])).tolist()
    [[5.0, 1.0]]
    """
    moved = jax.lax.stop_gradient(after).astype(jnp.float32) - jax.lax.stop_gradient(before).astype(jnp.float32)
    return jnp.linalg.norm(moved, axis=-1)


class RepresentationShift(Reducer):
    """Ranks rows by how far a layer moves them, residual included, and keeps the best, best first.

    Where rows cannot be removed, the layer is the window attention of a Swin, or the convolution of a ConvNeXt. No
    attention is read, so any kernel will do, in any network and in any block.

    >>> from jaxprune.reduction import Plan
    >>> Plan("representation_shift", keep_rate=0.7, reduction_loc=(3,), moved_by="attention").text
    'representation_shift@3:keep_rate=0.7,moved_by=attention'

    Args:
      moved_by: "mlp", as published: rows leave behind the block; "attention": rows leave before its MLP.

    Raises:
      UserError: `moved_by` is neither.
    """

    where = "after"
    drops = True
    needs = frozenset({"entered"})

    def __init__(self, step, *, moved_by: str = "mlp", rngs=None):
        if moved_by not in LAYERS:
            raise unknown("moved_by", moved_by, LAYERS)
        super().__init__(step, rngs=rngs)
        self.where = LAYERS[moved_by] if step.removable else "after"

    def flops(self) -> int:
        """n·d for the distances of the n incoming rows."""
        return self.step.tokens_in * self.step.embed_dim

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, num_keep = self.step.num_prefix_tokens, self.step.num_keep
        if num_keep == self.step.tokens_in:
            return unchanged(tokens, prefix)
        moved = shift(present(attended.entered), tokens.x)[:, prefix:]
        if self.step.has_absent:
            moved = jnp.where(tokens.policy[:, prefix:] > 0, moved, -1)
        return keep_rows(tokens, best(moved, num_keep), prefix)
