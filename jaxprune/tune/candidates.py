"""Candidate plans: methods × places × counts, and mixtures of two methods."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from jaxprune import reduction
from jaxprune.errors import UserError
from jaxprune.evaluate.contestants import gflops
from jaxprune.nn.around_host import host_of
from jaxprune.reduction import At, Plan
from jaxprune.reduction.diffrate import published_plans
from jaxprune.reduction.parts.plan import quarters
from jaxprune.reduction.parts.step_sizes import Count
from jaxprune.tune.cost_table import Cost, CostTable
from jaxprune.weights.fingerprint import fingerprint

PUBLISHED = "diffrate, published counts"  # the method of `published`
_NEAR = 0.1  # share of the patches by which a step of a plan moves at most to a stair


class Candidate(NamedTuple):
    """A network under a plan.

    Attributes:
      name: the plan as text.
      method: method of the plan; the two methods of a mixture are joined by "+".
      places: the blocks that reduce.
      kept: fraction of the patches left at the end.
      model: the network.
      cost: predicted cost.
      weights: fingerprint of weights of its own, such as a healed network's; "" for the dense network's.
      members: the networks of a cascade, whose `model` is None; its cost is a mixture, see `cascade_candidates`.
      thresholds: of a cascade, one a network.
      reach: the share of the estimation images that reach each of its networks.
    """

    name: str
    method: str
    places: tuple[int, ...]
    kept: float
    model: Any
    cost: Cost
    weights: str = ""
    members: tuple["Candidate", ...] = ()
    thresholds: tuple[float, ...] = ()
    reach: tuple[float, ...] = ()

    @property
    def family(self) -> tuple[str, tuple[int, ...]]:
        """The family of plans that differ only in their counts."""
        return self.method, self.places


def default_places(depth: int) -> tuple[tuple[int, ...], ...]:
    """Returns the places where plans reduce: every block, the first two thirds of them, after each quarter, and early.

    Merging a little in every block, as ToMe was published, stays closer to the dense network than three large steps of
    the same cost; Random, which drops rows, gains a little from it. Where it ends after two thirds, the last blocks
    have more rows left, which maps of pixels need.

    >>> default_places(6)
    ((0, 1, 2, 3, 4, 5), (0, 1, 2, 3), (1, 3, 4), (1, 2, 3))
    >>> default_places(2)
    ((0, 1), (0,), (1,))
    """
    all_blocks = tuple(range(depth))
    early = tuple(sorted({depth * part // 6 for part in (1, 2, 3)} - {0}))
    return tuple(dict.fromkeys(filter(None, (all_blocks, all_blocks[: depth * 2 // 3], quarters(depth), early))))


def require_untrained(methods: Iterable[str]) -> None:
    """Raises a `UserError` for methods with parameters: what is certified must not depend on their random values."""
    usable = reduction.untrained()
    for method in methods:
        if method in reduction.methods() and method not in usable:
            raise UserError(
                f"{method} has parameters, and here they would be random: tune a network that was trained under it, "
                f"whose plan is tried too, or use {', '.join(usable)}."
            )


def require_alike(name: str, network: Any, dense: Any) -> None:
    """Checks that a healed network can stand beside plans of the dense one.

    Raises:
      UserError: it has no plan, or reads or says something else.
    """
    if getattr(network, "plan", None) is None:
        raise UserError(f"The healed network {name} has no plan: give one that recover() or apply() returned.")
    for quantity, value, expected in (
        ("image size", network.preprocessing.sides, dense.preprocessing.sides),
        ("number of classes", network.num_classes, dense.num_classes),
    ):
        if value != expected:
            raise UserError(
                f"The healed network {name} has {quantity} {value}, the dense one {expected}: give its own."
            )


def own_weights(name: str, fast: Any, dense: Any, table: CostTable) -> Candidate:
    """Returns the candidate of a network with weights of its own under its plan, such as a healed one.

    Args:
      name: of its row.
      fast: the network.
      dense: the dense network.
      table: the costs of its blocks.
    """
    steps = fast.plan.steps_for(len(host_of(fast).sites()))
    methods = tuple(dict.fromkeys(at.method for at in steps))
    if set(methods) <= set(table.methods()):
        cost = table.predict(fast)
    else:
        # Its methods may have parameters and are not in the table: predicted by FLOPs until it is timed as a whole.
        share = gflops(fast) / gflops(dense)
        cost = Cost(table.dense.seconds * share, table.dense.megabytes)
    places = tuple(at.layer for at in steps)
    return Candidate(name, "+".join(methods), places, 0.0, fast, cost, fingerprint(fast))


def plan(methods: Sequence[str], places: Sequence[int], kept: float) -> Plan:
    """Returns a plan that keeps a fraction `kept` of the patches in the end, with equal rates at every step.

    >>> plan(("topk", "tome"), (3, 6), 0.25).text
    'topk@3:keep_rate=0.5+tome@6:keep_rate=0.25'

    Args:
      methods: one for all steps; or two, the first of them for the first step.
      places: the blocks that reduce, in rising order.
      kept: fraction left after the last step.
    """
    count = len(places)
    named = [methods[0], *[methods[-1]] * (count - 1)]
    rates = [round(kept ** ((step + 1) / count), 4) for step in range(count)]
    return Plan(steps=[At(at, name, keep_rate=rate) for at, name, rate in zip(places, named, rates, strict=True)])


def candidates(
    model: Any,
    methods: Sequence[str],
    places: Iterable[Sequence[int]],
    kept: Iterable[float],
    predict: Callable[[Any], Cost],
    stairs: Sequence[int] = (),
) -> list[Candidate]:
    """Returns a network under plans at all places and counts, except those that it cannot follow.

    Args:
      model: the dense network.
      methods: one method, or two to mix, without parameters.
      places: the blocks of each plan.
      kept: fractions of the patches left in the end.
      predict: predicts the cost of a network.
      stairs: numbers of patches just below a step of the time; each plan is also tried with these, where they are near.
    """
    by_plan, patches = {}, host_of(model).sites(model.preprocessing.img_size)[0].num_patches
    for where in map(tuple, places):
        if len(set(methods)) > 1 and len(where) < 2:
            continue
        for share in sorted(kept, reverse=True):
            try:
                even = plan(methods, where, share)
            except UserError:  # as of ToMe, of which no step can keep less than half
                continue
            for schedule in dict.fromkeys((even, below_stairs(even, stairs, patches))):
                try:
                    fast = reduction.apply(model, schedule, img_size=model.preprocessing.img_size)
                except UserError:
                    continue
                method = "+".join(dict.fromkeys(methods))
                by_plan.setdefault(schedule, Candidate(schedule.text, method, where, share, fast, predict(fast)))
    return list(by_plan.values())


def below_stairs(plan: Plan, stairs: Sequence[int], patches: int) -> Plan:
    """Returns a plan whose steps keep numbers of patches just below a step of the time, where one is near.

    >>> below_stairs(plan(("topk",), (3, 6), 0.5), (96, 128), 196).text
    'topk@3:num_keep=128+topk@6:num_keep=96'

    Args:
      plan: by keep rates.
      stairs: numbers of patches just below a step of the time.
      patches: of the network.
    """
    steps = []
    for at in plan.steps:
        count = at.amount.tokens(patches, patches)
        nearest = min(stairs, key=lambda stair: abs(stair - count), default=0)
        is_close = nearest > 0 and abs(nearest - count) <= _NEAR * patches
        steps.append(at.changed(amount=Count(nearest)) if is_close else at)
    return Plan(steps=steps)


def published(model: Any, predict: Callable[[Any], Cost]) -> list[Candidate]:
    """Returns a network under the numbers of rows that DiffRate's authors published for it; [] without any.

    Args:
      model: the dense network; its name says whose numbers fit.
      predict: predicts the cost of a network.
    """
    recipe = getattr(model, "recipe", None)
    networks = []
    for schedule in published_plans(str(recipe.as_dict().get("name", ""))) if recipe is not None else ():
        try:
            fast = reduction.apply(model, schedule, img_size=model.preprocessing.img_size)
        except UserError:
            continue
        places = tuple(at.layer for at in schedule.steps)
        networks.append(Candidate(schedule.text, PUBLISHED, places, 0.0, fast, predict(fast)))
    return networks
