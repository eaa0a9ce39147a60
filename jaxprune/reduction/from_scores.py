"""Any scorer at layer 0: patches that it ranks low are never embedded (PaPr, LTRP and those they compare with)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.nn.params import frozen
from jaxprune.reduction.base import Aux, Reducer, Stage
from jaxprune.reduction.rows import places


class FromScores(Reducer):
    """Keeps the patches that a scorer selects on the images, best first; the network calls it before it embeds any.

    The count is the scorer's: PaPr's `int(n·keep_rate)` counts the CLS token, `int(p·keep_rate)` of most others does
    not. The scorer is frozen: nothing of it is a parameter of the network. `extra["scores"]` of the first stage is what
    it said, (b, p).

    Args:
      scorer: a `jaxprune.scoring.Scorer`, given to `reduction.apply(…, scorer=…)`.
      in_order: keeps the patches in raster order instead.
    """

    where = "embed"

    def __init__(self, stage: Stage, *, scorer: Any = None, in_order: bool = False, rngs: nnx.Rngs | None = None):
        super().__init__(stage)
        self.scorer = frozen(scorer)
        self.in_order = in_order

    @classmethod
    def check(cls, plan) -> None:
        if plan.r is not None:
            raise UserError("from_scores prunes once, before the first block: use keep_rate or num_keep in place of r.")
        if plan.reduction_loc != (0,):
            raise UserError(
                f"from_scores prunes before the first block, and reduction_loc is {plan.reduction_loc}: leave it out."
            )

    def choose(self, images: Float[Array, "b H W c"], key: PRNGKeyArray | None = None) -> Aux:
        """Returns which patches are kept, and in which row each is."""
        patches = self.stage.rows_in
        if self.stage.num_keep == patches:
            rows = jnp.broadcast_to(jnp.arange(patches, dtype=jnp.int32)[None, :], (images.shape[0], patches))
            return Aux(row_map=rows, kept=rows)
        scores = jax.lax.stop_gradient(self.scorer(images, key=key))
        ids: Int[Array, "b k"] = self.scorer.select(scores, self.stage.num_keep)
        if self.in_order:
            ids = jnp.sort(ids, axis=1)
        return Aux(row_map=places(ids, patches), kept=ids, extra={"scores": scores})
