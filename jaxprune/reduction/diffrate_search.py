"""DiffRate's search: how many rows each block drops and merges is learned by gradient (Chen et al., 2023, Sec. 3.2).

Written from the paper and from facts about the published code, which has no licence; nothing of it is copied.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxprune.errors import UserError
from jaxprune.nn.tokens import Tokens
from jaxprune.reduction.diffrate import DiffRate, plan_of_counts
from jaxprune.reduction.parts.apply_plan import installed
from jaxprune.reduction.parts.base import LossContext, Step, StepReport
from jaxprune.reduction.parts.clusters import by_cluster
from jaxprune.reduction.parts.keep_rows import cls_scores
from jaxprune.reduction.parts.most_similar import most_similar
from jaxprune.reduction.parts.plan import Plan
from jaxprune.reduction.parts.row_maps import compose


class LearnedCount(nnx.Module):
    """A number of rows, as the expectation of a learned distribution over candidates.

    Args:
      num_rows: the largest candidate; the others are smaller by multiples of `granularity`.
    """

    def __init__(self, num_rows: int, granularity: int = 1):
        self.candidates: tuple[int, ...] = tuple(range(num_rows, 0, -granularity))
        self.logits = nnx.Param(jnp.zeros((len(self.candidates),), jnp.float32))

    def __call__(self) -> Float[Array, ""]:
        """The expectation, rounded up; its gradient is that of the expectation."""
        mean = jax.nn.softmax(self.logits[...]) @ jnp.asarray(self.candidates, jnp.float32)
        return mean + jax.lax.stop_gradient(jnp.ceil(mean) - mean)

    def probability(self) -> Float[Array, "r"]:
        """The probability that each row is among those counted, the most important row first."""
        # For each row the number of candidates that count it, which are the first ones.
        larger = np.searchsorted(-np.asarray(self.candidates), -np.arange(self.candidates[0]))
        return jnp.cumsum(jax.nn.softmax(self.logits[...]))[larger - 1]

    def mask(self, rank: Int[Array, "b n"], present: Shaped[Array, "b 1"] | int) -> Float[Array, "b n"]:
        """0 for the rows that leave, 1 for others, with the gradient of `probability`.

        Args:
          rank: the place of each row by falling importance.
          present: number of rows that have not left before; all 1 if none leaves.
        """
        count = jax.lax.stop_gradient(self())
        probability = self.probability()[rank]
        hard = jnp.where((rank >= count) & (rank < present), 0.0, 1.0)
        return jnp.where(count < present, hard + probability - jax.lax.stop_gradient(probability), 1.0)


class DiffRateSearch(DiffRate):
    """Learns, for each block, how many rows stay after dropping and how many after merging.

    In training every row stays in its place, and rows that have left are masked in the attention of later blocks. Two
    counts (`LearnedCount`) say how many rows, by falling attention of the CLS token, are left; a mask carries the
    gradient to them. The loss `macs`, (multiply-accumulates − target)² in billions², leads to the target. Only the
    counts are meant to learn, from zeros: train for a few epochs with all other parameters frozen, then apply the plan
    of `searched_plan`. In evaluation the plan's own counts hold, as in `diffrate`.

    Args:
      gmacs: billions of multiply-accumulates of the whole network to search for; None: those of the plan.
      granularity: distance between the candidates.
      options: those of `DiffRate`.

    Raises:
      UserError: `gmacs` or `granularity` is not positive, or the plan has `restore="fuse"`.

    >>> from flax import nnx; import jaxprune
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=3, num_heads=2)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> search = jaxprune.reduction.apply(model, Plan("diffrate_search", 0.6, (1, 2)))
    >>> searched_plan(search).text  # before any training
    'diffrate@1:num_keep=9,prune_keep=9'
    """

    soft_policy = True
    leaves_absent = "training"
    identity_at_one = False
    needs_cost = True
    loss_weights: ClassVar[dict[str, float]] = {"macs": 5.0}
    published = "blocks.{layer}"
    renames: ClassVar[dict[str, str]] = {
        "prune_ddp.selected_probability": "after_dropping.logits",
        "merge_ddp.selected_probability": "after_merging.logits",
    }

    def __init__(
        self,
        step: Step,
        *,
        gmacs: float | int | None = None,
        granularity: int = 1,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ):
        super().__init__(step, **options)
        if step.restore == "fuse":
            raise UserError(
                "diffrate_search does not count rows that come back: search without restore='fuse', and set it in the "
                "plan of the counts that were learned."
            )
        if gmacs is not None and not gmacs > 0:
            raise UserError(f"gmacs={gmacs} cannot be reached: use billions of multiply-accumulates, such as 2.9.")
        if granularity < 1:
            raise UserError(f"granularity={granularity} is not a distance between numbers of rows: use 1 or more.")
        self.gmacs = None if gmacs is None else float(gmacs)
        patches = 1
        for side in step.grid:
            patches *= side
        self.after_dropping, self.after_merging = (LearnedCount(patches, granularity) for _ in range(2))

    @classmethod
    def losses(cls, context: LossContext) -> dict[str, Array]:
        network, gmacs = context.reducers[0].step.cost, context.reducers[0].gmacs
        if network is None:
            return {}
        extras = [report.extra or {} for report in context.steps]
        counts = [(extra["after_dropping"], extra["after_merging"]) for extra in extras]
        layers = [reducer.step.layer for reducer in context.reducers]
        leaving = dict(zip(layers, left_by(counts, network.patches), strict=True))
        target = network.total({reducer.step.layer: reducer for reducer in context.reducers}) / 1e9
        return {"macs": jnp.square(network.total(leaving) / 1e9 - (target if gmacs is None else gmacs))}

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        if not train:
            return super().__call__(tokens, attended, train=train, key=key)
        prefix = self.step.num_prefix_tokens
        before = tokens.policy[:, prefix:]
        present = (jax.lax.stop_gradient(before) > 0.5).sum(1, keepdims=True)
        scores = jnp.where(before > 0.5, cls_scores(attended, prefix), -jnp.inf)
        rank = jnp.argsort(jnp.argsort(-scores, axis=1, stable=True), axis=1, stable=True).astype(jnp.int32)
        dropping, merging = self.after_dropping(), self.after_merging()
        between = jnp.minimum(present, jax.lax.stop_gradient(dropping))
        policy = before * self.after_dropping.mask(rank, present) * self.after_merging.mask(rank, between)
        stays = rank < jnp.minimum(between, jax.lax.stop_gradient(merging))
        merged, target = _merged_in_place(tokens, stays, rank < between, prefix, discounted=self.discounted)
        numbers = jnp.arange(rank.shape[1], dtype=jnp.int32)[None, :]
        row_map = jnp.where(stays, numbers, jnp.where(rank < between, target, -1))
        reduced = merged._replace(
            policy=jnp.concatenate([tokens.policy[:, :prefix], policy], axis=1),
            assign=compose(tokens.assign, row_map),
        )
        extra = {"after_dropping": dropping, "after_merging": merging}
        return reduced, StepReport(row_map=row_map, kept=jnp.where(stays, numbers, -1), extra=extra)


def _merged_in_place(
    tokens: Tokens, stays: Bool[Array, "b n"], present: Bool[Array, "b n"], prefix: int, *, discounted: bool
) -> tuple[Tokens, Int[Array, "b n"]]:
    """Merges present rows that do not stay into the most similar row that does; returns the target of each row too.

    Rows that leave keep their place and size, by which the gradient of the mask is weighed.
    """
    x, size = tokens.x[:, prefix:], tokens.size[:, prefix:]
    joining = present & ~stays
    similarity, target = most_similar(x, x, stays)
    # As published in training, no row that joins counts less than one patch.
    added = jnp.where(joining, jnp.maximum(size * (similarity if discounted else 1), 1), 0)
    terms = jnp.concatenate(
        [jnp.where(joining[:, :, None], x.astype(jnp.float32), 0), joining[:, :, None], added[:, :, None]], axis=2
    )
    total = lambda joins: jnp.einsum("bkm,bme->bke", joins.astype(jnp.float32), terms, precision="highest")
    sums = by_cluster(total, target, x.shape[1])
    mean = (x.astype(jnp.float32) + sums[:, :, :-2]) / (1 + sums[:, :, -2:-1])
    x = jnp.where(stays[:, :, None], mean.astype(x.dtype), x)
    size = jnp.where(stays, size + sums[:, :, -1], jnp.where(joining, added, size))
    behind = lambda values, new: jnp.concatenate([values[:, :prefix], new], axis=1)
    return tokens._replace(x=behind(tokens.x, x), size=behind(tokens.size, size)), target


class Leaving(NamedTuple):
    """The rows that a step leaves, for the count of a network's cost."""

    rows: Any
    where: str = "after"
    merged_in_place: bool = False

    def num_tokens(self) -> Any:
        """Number of rows, which may be an array."""
        return self.rows

    def num_fused(self) -> int:
        """None come back: `DiffRateSearch` refuses such plans."""
        return 0


def left_by(counts: Sequence[tuple[Array, Array]], arriving: int) -> list[Leaving]:
    """The rows left by each step: the smallest number so far, with the gradient of both counts of the step itself.

    Args:
      counts: rows after dropping and after merging, by step.
      arriving: rows that enter the first step.
    """
    leaving, left = [], jnp.asarray(float(arriving))
    for dropping, merging in counts:
        value = jax.lax.stop_gradient(jnp.minimum(left, jnp.minimum(dropping, merging)))
        left = value + sum(count - jax.lax.stop_gradient(count) for count in (dropping, merging))
        leaving.append(Leaving(left))
    return leaving


def searched_plan(model: Any) -> Plan:
    """The plan of `diffrate` with the counts that a network has learned.

    Args:
      model: a network under a plan of `diffrate_search`.

    Raises:
      UserError: the network has no such step.
    """
    steps = {reducer.step.layer: reducer for reducer in installed(model) if isinstance(reducer, DiffRateSearch)}
    if not steps:
        raise UserError(
            "The network has no learned counts: apply Plan('diffrate_search', …) and train it before searched_plan."
        )
    first = next(iter(steps.values()))
    num_tokens = 1 + first.after_dropping.candidates[0]
    of_layer = lambda layer, name: 1 + int(getattr(steps[layer], name)()) if layer in steps else num_tokens
    counts = [
        [of_layer(layer, name) for layer in range(max(steps) + 1)] for name in ("after_dropping", "after_merging")
    ]
    return plan_of_counts(*counts, tokens=num_tokens)
