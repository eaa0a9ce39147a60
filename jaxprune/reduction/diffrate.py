"""DiffRate: drop the rows that the CLS token attends to least, and merge the next ones (Chen et al., 2023, Sec. 3).

The numbers of rows are those of any plan, such as the published ones (`published_plan`); `diffrate_search` learns them.
Written from the paper and from facts about the published code, which has no licence; nothing of it is copied.
"""

import re
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.errors import UserError, unknown
from jaxprune.nn.tokens import Tokens
from jaxprune.reduction.parts.base import Reducer, Step, StepReport
from jaxprune.reduction.parts.clusters import by_cluster
from jaxprune.reduction.parts.diffrate_counts import PUBLISHED
from jaxprune.reduction.parts.keep_rows import best, cls_scores, keep_rows, unchanged
from jaxprune.reduction.parts.merged_position import merged_position
from jaxprune.reduction.parts.most_similar import most_similar
from jaxprune.reduction.parts.plan import At, Plan
from jaxprune.reduction.parts.row_maps import compose


class DiffRate(Reducer):
    """Ranks rows by the attention of the CLS token, drops the last ones, and merges the next into the best.

    Each merged row joins the kept row that is most similar to it by the cosine of the tokens. A kept row becomes the
    plain mean of all that meet in it. Later blocks weigh keys by their size (proportional attention); as published, a
    row that joins adds its size times its similarity, so sizes do not add up to the number of patches.

    Args:
      pruned: share of the leaving rows that are dropped; the others merge. Ignored with `prune_keep`.
      prune_keep: number of rows that dropping leaves; None uses `pruned`.
      discounted: False adds whole sizes, which then count patches.

    Raises:
      UserError: `pruned` is not a share, or `prune_keep` is below the number of rows to keep.

    >>> from jaxprune.reduction import Step
    >>> step = Step(0, 1, (4, 4), 1, 16, 8, 0.5, 32, 2)
    >>> DiffRate(step).num_ranked(), DiffRate(step, prune_keep=10).num_ranked()
    (12, 10)
    """

    where = "after"
    needs = frozenset({"cls_attn"})
    row_options = frozenset({"prune_keep"})
    proportional = True

    def __init__(
        self,
        step: Step,
        *,
        pruned: float | int = 0.5,
        prune_keep: int | None = None,
        discounted: bool = True,
        rngs: Any = None,
    ):
        super().__init__(step)
        if not 0 <= pruned <= 1:
            raise UserError(f"pruned={pruned} is not a share of the leaving rows: use 0 to 1, such as 0.5.")
        if prune_keep is not None and prune_keep < step.num_keep:
            raise UserError(
                f"prune_keep={prune_keep} at block {step.layer} drops rows that the plan keeps: use {step.num_keep} "
                "or more."
            )
        self.pruned, self.prune_keep, self.discounted = float(pruned), prune_keep, discounted

    def num_ranked(self) -> int:
        """Number of rows that are not dropped; those beyond `num_keep` merge."""
        arriving = self.step.tokens_in
        if self.prune_keep is not None:
            return min(self.prune_keep, arriving)
        return arriving - int((arriving - self.step.num_keep) * self.pruned)

    def num_dropped(self) -> int:
        return self.step.tokens_in - self.num_ranked()

    def flops(self) -> int:
        """2·k·m·d: the similarities of m merged rows with k kept ones, and the sums of what joins."""
        return 2 * self.step.num_keep * (self.num_ranked() - self.step.num_keep) * self.step.embed_dim

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix = self.step.num_prefix_tokens
        if self.step.num_keep >= self.step.tokens_in:
            return unchanged(tokens, prefix)
        ranked, report = keep_rows(tokens, best(cls_scores(attended, prefix), self.num_ranked()), prefix)
        if self.num_ranked() == self.step.num_keep:
            return ranked, report
        merged, joined = merge_last(ranked, self.step, discounted=self.discounted)
        kept: Any = report.kept
        return merged, StepReport(compose(report.row_map, joined.row_map), kept[:, : self.step.num_keep])


def merge_last(tokens: Tokens, step: Step, *, discounted: bool = True) -> tuple[Tokens, StepReport]:
    """Merges all rows but the first `step.num_keep` into the most similar one of these.

    Args:
      tokens: rows by falling importance.
      step: only the number of rows to keep, the prefix and the rule of positions count.
      discounted: see `DiffRate`.
    """
    prefix, num_keep = step.num_prefix_tokens, step.num_keep
    x, size, policy = (values[:, prefix:] for values in (tokens.x, tokens.size, tokens.policy))
    targets = policy[:, :num_keep] > 0 if step.has_absent else None
    similarity, target = most_similar(x[:, num_keep:], x[:, :num_keep], targets)
    if targets is not None:
        similarity = jnp.where(jnp.isfinite(similarity), similarity, 0)
    added = size[:, num_keep:] * (similarity if discounted else 1)
    weights = policy if step.has_absent else jnp.ones_like(size)
    weighted = x.astype(jnp.float32) * weights[:, :, None]
    # One product for the sums of tokens, of their counts and of their sizes.
    terms = lambda x, weights, size: jnp.concatenate([x, weights[:, :, None], size[:, :, None]], axis=2)
    joining = terms(weighted[:, num_keep:], weights[:, num_keep:], added)
    total = lambda joins, kept: kept + _sum(joins, joining)
    sums = by_cluster(total, target, num_keep, terms(weighted[:, :num_keep], weights[:, :num_keep], size[:, :num_keep]))
    rows = sums[:, :, :-2] / jnp.maximum(sums[:, :, -2:-1], 1)
    numbers = jnp.broadcast_to(jnp.arange(num_keep, dtype=jnp.int32)[None, :], (x.shape[0], num_keep))
    row_map = jnp.concatenate([numbers, target.astype(jnp.int32)], axis=1)
    place = lambda inside, kept: merged_position(tokens, jnp.where(inside, size[:, None, :], 0), kept, step)
    behind = lambda values, new: jnp.concatenate([values[:, :prefix], new.astype(values.dtype)], axis=1)
    merged = Tokens(
        x=behind(tokens.x, rows),
        size=behind(tokens.size, sums[:, :, -1]),
        policy=behind(tokens.policy, jnp.minimum(sums[:, :, -2], 1)),
        assign=compose(tokens.assign, row_map),
        position=behind(tokens.position, by_cluster(place, row_map, num_keep, numbers)),
    )
    return merged, StepReport(row_map=row_map, kept=numbers)


def _sum(joins: Array, values: Float[Array, "b m e"]) -> Float[Array, "b k e"]:
    return jnp.einsum("bkm,bme->bke", joins.astype(values.dtype), values, precision="highest")


def published_plan(name: str, gmacs: float | int) -> Plan:
    """The plan with the numbers of rows that the authors found for a network of 224 pixels.

    >>> published_plan("deit_small", 2.9).steps[0]
    At(1, 'diffrate', num_keep=193, prune_keep=195)

    Args:
      name: "deit_tiny", "deit_small", "deit_base", "mae_base", "mae_large" or "mae_huge".
      gmacs: billions of multiply-accumulates that they searched for, a key of `PUBLISHED[name]`.

    Raises:
      UserError: they published no such numbers.
    """
    if name not in PUBLISHED:
        raise unknown("network with published DiffRate counts", name, PUBLISHED)
    if gmacs not in PUBLISHED[name]:
        raise UserError(
            f"DiffRate has no published counts for {name} at {gmacs} GMACs: use one of "
            f"{', '.join(map(str, PUBLISHED[name]))}."
        )
    return plan_of_counts(*PUBLISHED[name][gmacs])


def published_plans(name: str) -> list[Plan]:
    """Returns the plans with published numbers of rows for a network, by its name, the cheapest first; [] without any.

    >>> len(published_plans("deit_small_patch16_224")), published_plans("deit3_small_patch16_224")
    (5, [])

    Args:
      name: timm's name. The numbers for MAE are of networks that were fine-tuned from it: "vit_base_patch16_224.mae".
    """
    deit = re.fullmatch(r"deit_(tiny|small|base)_patch16_224(\..+)?", name)
    mae = re.fullmatch(r"vit_(base_patch16|large_patch16|huge_patch14)_224\.mae", name)
    if deit is None and mae is None:
        return []
    network = f"deit_{deit[1]}" if deit else f"mae_{mae[1].partition('_')[0]}"  # type: ignore[index]
    return [published_plan(network, gmacs) for gmacs in sorted(PUBLISHED[network])]


def plan_of_counts(prune_kept: Sequence[int], merge_kept: Sequence[int], tokens: int | None = None) -> Plan:
    """The plan for numbers of tokens after dropping and after merging in each block, as published: they count CLS.

    A block whose numbers do not fall has no step; where more rows would stay after merging than after dropping, none
    merge.

    Args:
      prune_kept, merge_kept: tokens after dropping and after merging, by block.
      tokens: tokens that enter the first block; None: it leaves all, as published.

    >>> plan_of_counts((197, 150, 90), (197, 140, 100)).text
    'diffrate@1:num_keep=139,prune_keep=149+diffrate@2:num_keep=89,prune_keep=89'
    """
    arriving, steps = prune_kept[0] if tokens is None else tokens, []
    for layer, (pruned, merged) in enumerate(zip(prune_kept, merge_kept, strict=True)):
        left = min(arriving, pruned, merged)
        if left < arriving:
            ranked = min(arriving, pruned) - 1
            steps.append(At(layer, "diffrate", num_keep=left - 1, prune_keep=ranked))
        arriving = left
    return Plan(steps=steps)
