"""Any scorer at layer 0: patches that it ranks low are never embedded (PaPr, LTRP and those they compare with)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.nn.params import copied, frozen
from jaxprune.reduction.base import Aux, Reducer, Stage
from jaxprune.reduction.rows import places


class FromScores(Reducer):
    """Keeps the patches that a scorer selects on the images, best first; the network calls it before it embeds any.

    The count is the scorer's: PaPr's `int(n·keep_rate)` counts the CLS token, `int(p·keep_rate)` of most others does
    not. `extra["scores"]` of the first stage is what the scorer said, (b, p).

    Args:
      scorer: a `jaxprune.scoring.Scorer`, given to `reduction.apply(…, scorer=…)`.
      in_order: keeps the patches in raster order instead.
      train_scorer: the scorer's weights are parameters of the network and learn with it; by default they are frozen.
        Choosing has no gradient, so a kept patch passes its own on to its score: its token is multiplied by a one whose
        derivative is that of the score. The published switch (LTRP's `finetune_scorenet`) leaves this out, and with it
        all that a ranker could learn.
    """

    where = "embed"

    def __init__(
        self,
        stage: Stage,
        *,
        scorer: Any = None,
        in_order: bool = False,
        train_scorer: bool = False,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(stage)
        self.scorer = copied(scorer) if train_scorer else frozen(scorer)
        self.in_order, self.train_scorer = in_order, train_scorer

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
        scores = self.scorer(images, key=key)
        if not self.train_scorer:
            scores = jax.lax.stop_gradient(scores)
        ids: Int[Array, "b k"] = self.scorer.select(jax.lax.stop_gradient(scores), self.stage.num_keep)
        if self.in_order:
            ids = jnp.sort(ids, axis=1)
        return Aux(row_map=places(ids, patches), kept=ids, extra={"scores": scores})

    def taught(self, x: Float[Array, "b n d"], chosen: Aux) -> Float[Array, "b n d"]:
        """Returns embedded tokens as they are, but with a gradient to the scores if the scorer learns."""
        if not self.train_scorer or chosen.extra is None:
            return x
        scores = jnp.take_along_axis(chosen.extra["scores"], chosen.kept, axis=1)
        one = 1 + (scores - jax.lax.stop_gradient(scores))
        front = jnp.ones((x.shape[0], self.stage.num_prefix_tokens), one.dtype)
        return x * jnp.concatenate([front, one], axis=1)[:, :, None].astype(x.dtype)
