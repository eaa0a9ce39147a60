"""Places a plan on the sites of a network: the number of tokens before and after each step."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flax import nnx

from jaxprune.errors import UserError
from jaxprune.nn.site import Site
from jaxprune.nn.tokens import WITHOUT_ATTENTION
from jaxprune.plugins import build
from jaxprune.reduction.from_scores import STAGES
from jaxprune.reduction.parts.base import Reducer, Step, is_idle
from jaxprune.reduction.parts.plan import At, Plan
from jaxprune.reduction.parts.plan_text import INPUT
from jaxprune.reduction.parts.step_sizes import Count, Rate, Removal

Make = Callable[[type[Reducer], dict[str, Any], Step], Reducer]


class Placed(NamedTuple):
    """A step of a plan, placed in a network.

    Attributes:
      site: the site of its block.
      reducer: the reducer, built for the tokens that enter that block.
    """

    site: Site
    reducer: Reducer

    @property
    def idle(self) -> bool:
        """Whether the step removes nothing and changes nothing."""
        return is_idle(type(self.reducer), self.reducer.step)


class Placement(NamedTuple):
    """A plan on the sites of a network.

    Attributes:
      entrance: the scorer's step before the first block; None without one.
      placed: the steps in the blocks.
    """

    entrance: Step | None
    placed: tuple[Placed, ...]


def place(
    plan: Plan,
    sites: Sequence[Site],
    make: Make,
    *,
    entrance: Site | None = None,
    prunes_input: bool = True,
    scorer: Any = None,
) -> Placement:
    """Resolves the steps of a plan on the sites of a network, each for the tokens left by the steps before it.

    Args:
      make: builds a reducer for a step.
      entrance: the site whose tokens a scorer drops before the first block, see `Host.entrance`; by default the first.
      prunes_input: whether the network can drop patches before embedding them.
      scorer: the scorer of a plan with a step at the input; it converts the keep rate to a count.

    Raises:
      UserError: the plan does not fit.
    """
    steps = plan.steps_for(len(sites))
    if isinstance(plan.r, tuple) and len(plan.r) > len(sites):
        raise _outside(len(plan.r) - 1, sites)
    first = sites[0] if entrance is None else entrance
    arriving, entering, placed = first.num_patches, None, []
    has_absent, merged = False, {}  # the tokens that a stage is left with where they stay merged
    for index, at in enumerate(steps):
        if at.layer == INPUT:
            entering = _entrance(plan, at, first, len(steps), scorer)
            if prunes_input:
                entering = entering._replace(num_keep=_raised(at, entering, entering.num_keep))
                arriving = entering.num_keep
                _check_entrance(at, first, sites)
            else:
                placed += [_guided(at, site, entering, index, make, scorer) for site in _pruned(at, sites)]
            continue
        layer = int(at.layer)
        if layer >= len(sites):
            raise _outside(layer, sites)
        if any(earlier.site.layer == layer for earlier in placed):
            raise UserError(f"Block {layer} has a step already (the scorer's, in every block): leave {at.method} out.")
        site, cls = sites[layer], at.reducer_class
        _check_readable(at, cls, site)
        _check_map(at, site, placed, arriving)
        if has_absent and cls.needs_present:
            raise UserError(
                f"{at.method} at block {layer} needs all rows present, and an earlier step leaves absent ones: put "
                f"{at.method} first."
            )
        if not site.removable and arriving < first.num_patches:
            raise UserError(
                f"{at.method} at block {layer} needs the whole map, and {steps[0].method} leaves {arriving} of "
                f"{first.num_patches} mask units of it: use one of the two."
            )
        cls.check_site(site)
        if site.removable and layer == len(sites) - 1 and any(step.restore == "fuse" for step in steps[: index + 1]):
            raise UserError(
                f"restore='fuse' brings rows back before the last block, {layer}, and {at.method} removes rows there: "
                "let the last step be at an earlier block."
            )
        if site.removable and arriving < first.num_patches:
            earlier = [reducer for _, reducer in placed if reducer.num_tokens() < reducer.step.tokens_in]
            cls.check_arriving(at, arriving, earlier)
        before = {"has_absent": has_absent, "planned_in": _planned_in(at, site, placed, arriving)}
        step = functools.partial(_step, plan, at, index, site, num_steps=len(steps), **before)
        reducer = make(cls, dict(at.options), step(arriving if site.removable else site.num_patches))
        if not cls.follows_count(dict(at.options)):
            reducer = make(cls, dict(at.options), reducer.step._replace(num_keep=reducer.num_tokens()))
        elif site.removable:
            reducer = _in_groups(at, reducer, make)
        if reducer.merged_in_place and site.stage in merged:
            reducer = make(cls, dict(at.options), step(merged[site.stage]))
        placed.append(Placed(site, reducer))
        if not site.removable:
            merged[site.stage] = reducer.num_tokens() if reducer.merged_in_place else site.num_patches
        else:
            arriving = reducer.num_tokens()
            has_absent = has_absent or cls.leaves_absent != "never"
    return Placement(entering, tuple(placed))


def abstract(cls: type[Reducer], options: dict[str, Any], step: Step) -> Reducer:
    """Builds a reducer with abstract parameters, to count tokens and cost."""
    return _abstract(cls, tuple(sorted(options.items())), step)


@functools.lru_cache(maxsize=4096)
def _abstract(cls: type[Reducer], options: tuple, step: Step) -> Reducer:
    if cls.where == "embed":
        return build(cls, dict(options), step, scorer=None)
    if not cls.has_parameters(dict(options)):
        return build(cls, dict(options), step, rngs=None)
    return nnx.eval_shape(lambda: build(cls, dict(options), step, rngs=nnx.Rngs(0)))


def _planned_in(at: At, site: Site, placed: Sequence[Placed], arriving: int) -> int | None:
    """`Step.planned_in` of a step."""
    if not site.removable or isinstance(at.amount, Removal):
        return None
    if not placed:
        return arriving
    return placed[-1].reducer.num_planned() if placed[-1].site.grid == site.grid else None


def _step(
    plan: Plan,
    at: At,
    index: int,
    site: Site,
    arriving: int,
    num_steps: int,
    has_absent: bool = False,
    planned_in: int | None = None,
) -> Step:
    count = at.amount.tokens(arriving, site.num_patches)
    if at.reducer_class.follows_count(dict(at.options)):
        count = _possible(plan, at, count, index, site.num_patches)
    rate = at.amount.rate if isinstance(at.amount, Rate) else count / site.num_patches
    if isinstance(at.amount, Count):
        rate = at.amount.count / site.num_patches
    return Step(
        index=index,
        layer=site.layer,
        grid=site.grid,
        num_prefix_tokens=site.num_prefix_tokens,
        tokens_in=arriving,
        num_keep=count,
        keep_rate=rate,
        embed_dim=site.embed_dim,
        num_heads=site.num_heads,
        num_steps=num_steps,
        has_absent=has_absent,
        removable=site.removable,
        cells=site.cells,
        restore=at.restore,
        position=at.position,  # pyright: ignore[reportArgumentType] - `At` checked it
        planned_in=planned_in,
    )


def _entrance(plan: Plan, at: At, first: Site, num_steps: int, scorer: Any) -> Step:
    step = _step(plan, at, 0, first, first.num_patches, num_steps)._replace(layer=-1)
    if scorer is None or isinstance(at.amount, Count):
        return step
    if tuple(scorer.grid) != first.grid:
        # The scores have their own grid and are resampled to that of every block.
        return step
    count = scorer.num_keep(at.amount.value, first.num_prefix_tokens)
    return step._replace(num_keep=_possible(plan, at, count, 0, first.num_patches))


def _in_groups(at: At, reducer: Reducer, make: Make) -> Reducer:
    """A reducer of a step with more rows, so that those in the network are a multiple of what the plan asks for."""
    while True:
        step = reducer.step
        if (count := _raised(at, step, reducer.num_tokens())) == step.num_keep:
            return reducer
        keep_rate = count / math.prod(step.grid)
        options = at.reducer_class.with_counts(dict(at.options), functools.partial(max, count))
        reducer = make(at.reducer_class, options, step._replace(num_keep=count, keep_rate=keep_rate))


def _raised(at: At, step: Step, num_tokens: int) -> int:
    """The `num_keep` of a step that leaves that many rows, raised by what a multiple lacks, at most to all rows."""
    missing = -(step.num_prefix_tokens + num_tokens) % at.multiple_of
    return min(step.num_keep + missing, step.tokens_in)


def _pruned(at: At, sites: Sequence[Site]) -> list[Site]:
    """The blocks in which a scorer's scores apply: all, or those of some stages (`mask_block`)."""
    mask_block = dict(at.options).get("mask_block")
    if mask_block is None or mask_block not in STAGES:
        return list(sites)
    if sites[-1].stage != 3:
        raise UserError(
            f"mask_block={mask_block} is for four stages, and this network has {sites[-1].stage + 1}: leave it out."
        )
    return [site for site in sites if site.stage in STAGES[mask_block]]


def _guided(at: At, site: Site, entrance: Step, index: int, make: Make, scorer: Any) -> Placed:
    """The scorer's step in a block whose tokens cannot be removed: the same fraction of them."""
    num_patches, by_rate = site.num_patches, isinstance(at.amount, Rate)
    count = int(num_patches * at.amount.value) if by_rate else num_patches * entrance.num_keep // entrance.tokens_in
    step = entrance._replace(
        index=index,
        layer=site.layer,
        grid=site.grid,
        tokens_in=site.num_patches,
        num_keep=max(count, 1),
        embed_dim=site.embed_dim,
        num_heads=site.num_heads,
        removable=False,
    )
    return Placed(site, make(at.reducer_class, dict(at.options), step))


def _check_readable(at: At, cls: type[Reducer], site: Site) -> None:
    if (fields := cls.needs - WITHOUT_ATTENTION) and not site.num_heads:
        raise UserError(
            f"{at.method} reads {', '.join(sorted(fields))} of a block's attention, and {site.path} has none: use a "
            "method that reads the tokens, such as random or dpc_knn, or a scorer (from_scores)."
        )


def _check_map(at: At, site: Site, placed: Sequence[Placed], arriving: int) -> None:
    """Checks that a step gets the grid, and the rows of it, that its method needs."""
    cls = at.reducer_class
    if len(site.grid) not in cls.dims:
        grids = " or ".join({2: "(rows, columns)", 3: "(frames, rows, columns)"}[sides] for sides in cls.dims)
        raise UserError(
            f"{at.method} works on a grid {grids}, and block {site.layer} has {site.grid}: use a network for "
            f"{'images' if 2 in cls.dims else 'clips'}, or another method such as random."
        )
    reduced = arriving < site.num_patches or any(not step.idle for step in placed)
    if cls.needs_map and site.removable and reduced:
        raise UserError(
            f"{at.method} at block {site.layer} needs all {site.num_patches} rows of the map in their order, and gets "
            f"{arriving} behind an earlier step: make it the first step that removes rows."
        )


def _check_entrance(at: At, first: Site, sites: Sequence[Site]) -> None:
    """Checks that patches dropped at the input can come back."""
    if at.restore != "zero" and first != sites[0]:
        raise UserError(
            f"restore={at.restore!r}: this network drops units of several patches at the input and never embeds them: "
            "leave restore out."
        )


def _outside(layer: int, sites: Sequence[Site]) -> UserError:
    return UserError(f"Block {layer} of a plan is outside this network, whose blocks are 0 to {len(sites) - 1}.")


def _possible(plan: Plan, at: At, count: int, index: int, num_patches: int) -> int:
    """Returns the count, after checking that a step can keep that many patches."""
    if count < 1:
        raise UserError(
            f"{plan} keeps {count} of {num_patches} patches at step {index + 1}: use {_lowest(plan, at, num_patches)}."
        )
    return count


def _lowest(plan: Plan, at: At, num_patches: int) -> str:
    """The nearest plan of this kind that keeps at least one patch at every step."""
    if isinstance(at.amount, Count):
        return f"num_keep={tuple(max(count, 1) for count in plan.num_keep)}" if plan.num_keep else "num_keep=1"
    least = math.ceil(1e4 / num_patches) / 1e4
    if isinstance(plan.keep_rate, tuple) and plan.method is not None:
        return f"keep_rate={tuple(max(rate, least) for rate in plan.keep_rate)}"
    if plan.method is None:
        return f"keep_rate={least}"
    return f"keep_rate={math.ceil(1e4 * num_patches ** (-1 / len(plan.steps))) / 1e4}"
