"""Applies a plan to a network."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from jaxprune.errors import UserError, quoted
from jaxprune.nn.around_host import AroundHost, host_of
from jaxprune.nn.block_cost import NetworkCost
from jaxprune.nn.host import Host
from jaxprune.nn.params import copied, merge, split
from jaxprune.nn.site import Site
from jaxprune.plugins import build
from jaxprune.preprocessing import Normalisation, trained_on
from jaxprune.reduction.parts.base import Reducer, Step
from jaxprune.reduction.parts.find_method import shown_name
from jaxprune.reduction.parts.plan import Plan
from jaxprune.reduction.parts.plan_on_network import Placed, place


def apply(
    model: Any,
    plan: Plan | Sequence[Plan],
    *,
    scorer: Any = None,
    img_size: int | Sequence[int] | None = None,
    rngs: nnx.Rngs | None = None,
) -> Any:
    """Returns a network that follows `plan`; it shares the arrays of `model`, which is not changed.

    Applying a plan to a reduced network replaces its plan; `apply(fast, Plan("topk", r=0))` restores the dense network.
    The plan that it follows already keeps the weights of its methods, for another `img_size` as far as they fit it.

    >>> from flax import nnx; import jaxprune
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> fast = apply(model, Plan("topk", keep_rate=0.5, reduction_loc=(1,)))
    >>> fast.blocks[1].reducer.num_tokens()
    8

    Args:
      model: a network with sites, such as a ViT (`jaxprune.nn.Host`), or one around it, such as `jaxprune.dense`'s: its
        encoder follows the plan, and the rest reads maps that are dense again.
      plan: a plan; or two, one of them `Plan("from_scores")`, and the other reduces what that one keeps.
      scorer: the `jaxprune.scoring.Scorer` of a step at the input, with the network's grid. If its `normalised` is None
        and both networks have a preprocessing, it is set to the normalisation of `model.preprocessing`.
      img_size: image size, for a network that takes any; by default the one it was built for.
      rngs: initialises the parameters of methods that have any.

    Raises:
      UserError: the plans do not fit the network or each other, or a scorer is missing or not needed.
    """
    if isinstance(model, AroundHost):
        around: Any = copied(model)
        around.follow(apply(model.encoder, plan, scorer=scorer, img_size=img_size, rngs=rngs))
        return around
    require_tokens(model)
    plan = joined(plan)
    sites = model.sites(img_size)
    at, first = plan.at_input, model.entrance(img_size)
    if (at is None) != (scorer is None):
        raise UserError(
            'Plan("from_scores") and scorer= go together: '
            + ("give scorer=jaxprune.scoring.create(…) too." if scorer is None else "leave out scorer or add it.")
        )
    if at is not None and model.prunes_input and first == sites[0]:
        # Scores are otherwise resampled, to the map of each block or to mask units.
        _check_grid(scorer, first)

    def make(cls: type[Reducer], options: dict[str, Any], step: Step) -> Reducer:
        cost = _cost(model, sites, img_size) if cls.needs_cost else None
        step = step._replace(cost=cost, num_classes=getattr(model, "num_classes", 0))
        scorer_later: dict[str, Any] = {"scorer": None} if cls.where == "embed" else {}
        return build(cls, options, step, rngs=rngs, **scorer_later)

    placement = place(plan, sites, make, entrance=first, prunes_input=model.prunes_input, scorer=scorer)
    fast: Any = copied(model)
    place_of = lambda reducer: (reducer.step.index, reducer.step.layer)
    before = {place_of(r): r for r in installed(fast)} if plan == getattr(model, "plan", None) else {}
    _clear(fast, sites)
    if at is not None and placement.entrance is not None:
        fast.pruner = nnx.data(build(at.reducer_class, dict(at.options), placement.entrance, scorer=scorer))
        _convert_pixels(fast.pruner.scorer, trained_on(model))
    placed = [at._replace(reducer=_kept(at.reducer, before.get(place_of(at.reducer)))) for at in placement.placed]
    _install(fast, sites, placed)
    _bring_back(fast, sites)
    fast.plan = plan
    return fast


def require_tokens(model: Any) -> None:
    """Checks that a network has tokens that a plan can reduce.

    Raises:
      UserError: it is no `Host`, such as a ConvNet.
    """
    if not isinstance(model, Host):
        raise UserError(
            f"A plan reduces the tokens of a transformer, and a {type(model).__name__} has none: apply it to a "
            "network such as models.create('vit_small_patch16_224', …), or leave out the plans."
        )


def installed(model: Any) -> tuple[Reducer, ...]:
    """Returns the reducers of a network in the order of its plan, as in `HostOutput.steps`; () for a dense one."""
    model = host_of(model)
    if not isinstance(model, Host):
        return ()
    front = () if model.pruner is None or not model.prunes_input else (model.pruner,)
    inside = (model.block(site).reducer for site in model.sites())
    return (*front, *(reducer for reducer in inside if reducer is not None))


def constraints(model: Any) -> dict[str, Callable[[Array], Array]]:
    """Returns {dotted name of a parameter: function to an allowed value} of a network's reducers; see `Reducer`."""
    sites = model.sites()
    return {
        f"{sites[reducer.step.layer].path}.reducer.{name}": allowed
        for reducer in installed(model)
        for name, allowed in reducer.constraints.items()
    }


def joined(plan: Plan | Sequence[Plan]) -> Plan:
    """Joins plans into one: at most one that works before the first block, and one that works inside.

    Raises:
      UserError: they are not plans, or too many.
    """
    plans = (plan,) if isinstance(plan, Plan) else plan
    if not isinstance(plans, (tuple, list)) or not all(isinstance(item, Plan) for item in plans):
        raise UserError(f"{plan!r} is not a plan: write Plan('topk', keep_rate=0.7), or Plan.from_text(…).")
    if len(plans) == 1:
        return plans[0]
    entrance = [p for p in plans if p.at_input is not None]
    inside = [p for p in plans if p not in entrance]
    if len(entrance) != 1 or len(inside) != 1:
        raise UserError(
            f'A network follows one plan, or Plan("from_scores") and one other, but {len(plans)} were passed: '
            f"{', '.join(p.text for p in plans) or 'none'}. Write the steps of one plan: Plan(steps=(At(…), …))."
        )
    return inside[0].behind(entrance[0])


def _cost(model: Host, sites: Sequence[Site], img_size: int | Sequence[int] | None) -> NetworkCost:
    """The cost of a network that no scorer prunes."""
    overhead, patches = model.overhead(img_size), sites[0].num_patches
    outside = patches * (overhead.embed + overhead.pool) + overhead.between + overhead.head
    return NetworkCost(tuple((site, model.block_cost(site)) for site in sites), patches, outside)


def _check_grid(scorer: Any, first: Site) -> None:
    if not hasattr(scorer, "grid"):
        raise UserError(f"scorer={quoted(scorer)} is not a scorer: build one by scoring.create.")
    if tuple(scorer.grid) != first.grid:
        raise UserError(
            f"The scorer ranks a grid of {tuple(scorer.grid)} patches, and the network has {first.grid}: create "
            f"the scorer with grid={first.grid}."
        )


def _convert_pixels(scorer: Any, normalised: Normalisation | None) -> None:
    """Sets `normalised` on a scorer, or the one it wraps, whose network expects another normalisation."""
    for _, node in nnx.iter_graph(scorer):
        network = getattr(node, "proposal", None)
        if normalised is not None and trained_on(network) is not None and node.normalised is None:
            node.normalised = normalised


def _kept(reducer: Reducer, before: Reducer | None) -> Reducer:
    """A reducer with the arrays of the one that was at its place, where they fit."""
    if before is None or type(before) is not type(reducer):
        return reducer
    if before.step == reducer.step:
        return before
    parts, arrays = split(reducer), split(before)
    fit = jax.tree.map(jnp.shape, (parts.params, parts.rest)) == jax.tree.map(jnp.shape, (arrays.params, arrays.rest))
    return merge(parts.graph, arrays.params, arrays.rest) if fit else reducer


def _clear(host: Host, sites: Sequence[Site]) -> None:
    host.pruner = nnx.data(None)
    for site in sites:
        block = host.block(site)
        block.reducer, block.needs = nnx.data(None), frozenset()
        block.proportional = block.has_absent = block.soft_policy = block.fuses = False


def _bring_back(host: Host, sites: Sequence[Site]) -> None:
    """Lets the last block see dropped rows again if the plan fuses them."""
    fused = [reducer for reducer in installed(host) if reducer.num_fused()]
    last = host.block(sites[-1])
    last.fuses = bool(fused)
    # Of a varying number of rows some are absent.
    last.has_absent |= any(reducer.drops is None or reducer.leaves_absent != "never" for reducer in fused)


def _install(host: Host, sites: Sequence[Site], placed: Sequence[Placed]) -> None:
    """Gives the blocks their reducers, and makes other blocks report what these need."""
    for site, reducer in placed:
        host.block(site).reducer = nnx.data(reducer)
    for step in placed:
        cls, layer = type(step.reducer), step.site.layer
        if cls.soft_policy:
            # Where rows cannot be removed, a decision concerns only its own block (`Reducible.skip`).
            for site in sites:
                host.block(site).soft_policy |= site.removable
        if step.idle:
            continue
        if "entered" in cls.needs and step.reducer.where != "behind" and host.block(step.site).pooled > 1:
            raise UserError(
                f"{shown_name(cls)} compares rows with those that enter block {layer}, which pools them first: use "
                f"block {layer + 1}, or another method such as random."
            )
        if cls.where == "embed":
            host.block(step.site).needs |= {"scores"}
        elif cls.needs:
            read = host.block(sites[layer - 1] if cls.where == "before" and step.site.removable else step.site)
            read.needs = read.needs | cls.needs
        if step.site.removable:
            # Where rows leave before attention, it is computed between those that stay.
            for site in sites[layer + (step.reducer.where not in ("before", "anew")) :]:
                block = host.block(site)
                block.proportional = block.proportional or step.reducer.proportional
                block.has_absent = block.has_absent or cls.leaves_absent == "always"
        elif step.reducer.merged_in_place:
            for site in sites[layer + 1 :]:
                if site.stage == step.site.stage:
                    host.block(site).proportional |= step.reducer.proportional
