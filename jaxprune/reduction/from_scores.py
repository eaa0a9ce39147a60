"""A scorer at the input: patches that it ranks low are never embedded (PaPr, LTRP and their baselines)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.nn.params import copied, frozen, split
from jaxprune.nn.run_blocks import on_grid
from jaxprune.reduction.parts.base import Reducer, Step, StepReport
from jaxprune.reduction.parts.keep_rows import best, keep_rows, present, unchanged
from jaxprune.reduction.parts.row_maps import places

# The stages that each value of `mask_block` prunes, as in PaPr.
STAGES: dict[int, tuple[int, ...]] = {1: (2,), 2: (2, 3), 3: (1, 2, 3), 4: (0, 1, 2, 3)}


class FromScores(Reducer):
    """Keeps the patches that a scorer selects from the images, best first; called before any patch is embedded.

    The scorer determines the count: PaPr's `int(n·keep_rate)` counts the CLS token, most others use `int(p·keep_rate)`.
    `extra["scores"]` of the first step is the scorer's output, (b, p).

    Where patches cannot be removed, the network calls the scorer once, and low-ranked rows skip work in every block.
    Hiera drops whole mask units, by scores resampled to their grid.

    Args:
      scorer: the `jaxprune.scoring.Scorer` passed to `reduction.apply(…, scorer=…)`; None in the blocks.
      in_order: keep the patches in raster order instead.
      mask_block: the stages to prune in a hierarchical network of four stages: 1 the third, 2 the last two, 3 all but
        the first, 4 all.
      train_scorer: train the scorer's weights with the network; by default they are frozen. Selection has no gradient,
        so the token of a kept patch is multiplied by a straight-through factor: 1 in the forward pass, with the
        gradient of the patch's score. LTRP's published option (`finetune_scorenet`) has no such factor, so its ranker
        gets no gradient.
    """

    where = "embed"
    drops = True
    clears_map = True  # as PaPr's code does in ConvNeXt

    def __init__(
        self,
        step: Step,
        *,
        scorer: Any = None,
        in_order: bool = False,
        mask_block: int = 4,
        train_scorer: bool = False,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(step)
        if train_scorer:
            _require_gradient(step, scorer)
        self.scorer: Any = nnx.data(None if scorer is None else copied(scorer) if train_scorer else frozen(scorer))
        self.in_order, self.train_scorer = in_order, train_scorer
        if mask_block not in STAGES:
            raise UserError(f"mask_block={mask_block} is none of {', '.join(map(str, STAGES))}.")
        if step.removable and mask_block != max(STAGES):
            raise UserError(f"mask_block={mask_block} is for hierarchical networks; leave it out for this one.")

    def scores(
        self, images: Float[Array, "b *sides c"], key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "b p"], tuple[int, ...]]:
        """The scorer's output before it is resized, and its grid, for blocks whose rows cannot be removed."""
        scores, grid = self.scorer.native_scores(images, key=key)
        return self._without_gradient(scores), grid

    def _without_gradient(self, scores: Float[Array, "b p"]) -> Float[Array, "b p"]:
        return scores if self.train_scorer else jax.lax.stop_gradient(scores)

    def choose(self, images: Float[Array, "b *sides c"], key: PRNGKeyArray | None = None) -> StepReport:
        """Returns the kept patches and the row of each patch."""
        patches = self.step.tokens_in
        if self.step.num_keep == patches:
            rows = jnp.broadcast_to(jnp.arange(patches, dtype=jnp.int32)[None, :], (images.shape[0], patches))
            return StepReport(row_map=rows, kept=rows)
        if (grid := tuple(self.step.grid)) == tuple(self.scorer.grid):
            scores = self._without_gradient(self.scorer(images, key=key))
            ids: Int[Array, "b k"] = self.scorer.select(jax.lax.stop_gradient(scores), self.step.num_keep)
        else:
            scores = on_grid(*self.scores(images, key), grid)
            ids = best(jax.lax.stop_gradient(scores), self.step.num_keep)
        if self.in_order:
            ids = jnp.sort(ids, axis=1)
        return StepReport(row_map=places(ids, patches), kept=ids, extra={"scores": scores})

    def with_gradient(self, x: Float[Array, "b n d"], selection: StepReport) -> Float[Array, "b n d"]:
        """Returns embedded tokens unchanged, with a gradient to the scores if the scorer is trained."""
        if not self.train_scorer or selection.extra is None:
            return x
        scores = jnp.take_along_axis(selection.extra["scores"], jnp.asarray(selection.kept), axis=1)
        factor = 1 + (scores - jax.lax.stop_gradient(scores))
        front = jnp.ones((x.shape[0], self.step.num_prefix_tokens), factor.dtype)
        return x * jnp.concatenate([front, factor], axis=1)[:, :, None].astype(x.dtype)

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        """Keeps the rows with the best scores (`Attended.scores`), in a block whose rows cannot be removed."""
        if self.step.num_keep == self.step.tokens_in:
            return unchanged(tokens, self.step.num_prefix_tokens)
        ids = best(jax.lax.stop_gradient(present(attended.scores)), self.step.num_keep)
        return keep_rows(tokens, jnp.sort(ids, axis=1) if self.in_order else ids, self.step.num_prefix_tokens)


def _require_gradient(step: Step, scorer: Any) -> None:
    """Checks that a scorer can be trained with a network that it prunes."""
    remedy = "leave out train_scorer"
    if not step.removable:
        raise UserError(
            "train_scorer=True trains a scorer through the patches that a network removes, and this one removes none: "
            f"{remedy}."
        )
    if scorer is not None and not (scorer.differentiable and split(scorer).params):
        reason = "have no gradient" if split(scorer).params else "depend on no weights"
        raise UserError(
            f"train_scorer=True has no effect, because the scores of {type(scorer).__name__} {reason}: {remedy}, or "
            "choose a scorer that learns, such as ltrp."
        )
