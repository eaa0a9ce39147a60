"""The networks that a tuning tries: plans, smaller images, plans on these, healed networks, and cascades."""

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from jaxprune.errors import UserError
from jaxprune.nn.around_host import host_of
from jaxprune.reduction import DENSE
from jaxprune.tune import cascade_candidates, pareto_testing, smaller_images
from jaxprune.tune.candidates import PUBLISHED, Candidate, candidates, own_weights, published
from jaxprune.tune.cost_table import CostTable
from jaxprune.tune.losses import Losses
from jaxprune.tune.networks import Networks
from jaxprune.tune.requirement import Bound
from jaxprune.tune.search import Searched, search
from jaxprune.tune.tuned import Settings

SLACK = 0.05  # relative error allowed for predictions
_FAMILIES = 2  # of plans that are tried on smaller images
_log = logging.getLogger(__name__)


def searched(
    network: Networks, table: CostTable, losses: Losses, show: Any, bound: Bound, settings: Settings
) -> Searched:
    """Returns the plans to estimate on all images, and the rejected ones.

    Among the former are healed networks, and the plan that the network was trained with.

    Args:
      show: what `shown_images.shown_images` returned.
    """
    methods = [method for method in table.methods() if method in network.methods]
    trained = [own_weights(name, fast, network.dense, table) for name, fast in network.trained.items()]
    if not methods and not trained:
        raise UserError(f"The network can follow none of {', '.join(network.methods)}: name other methods.")
    predicted = table.predict(network.dense)
    dense, within = bound.of(predicted), bound.against(predicted)
    cost = lambda plan: bound.of(plan.cost)

    def allowed(plans: Iterable[Candidate]) -> list[Candidate]:
        return [plan for plan in plans if cost(plan) < dense and within.holds(plan.cost, settings.batch_size, SLACK)]

    prefix = host_of(network.dense).sites(network.dense.preprocessing.img_size)[0].num_prefix_tokens
    stairs = [rows - prefix for rows in table.stairs()]
    trained_names = {plan.name for plan in trained}

    def planned(mixed: tuple[str, ...]) -> list[Candidate]:
        plans = candidates(network.dense, mixed, network.places, settings.kept, table.predict, stairs)
        return [plan for plan in allowed(plans) if plan.name not in trained_names]

    sizes = _on_smaller_images(network, table, show, settings)
    smaller = allowed(sizes)
    counted = allowed(published(network.dense, table.predict)) if "diffrate" in methods else []
    on_sizes = functools.partial(_under_plans, methods=methods, network=network, table=table, settings=settings)
    if settings.exhaustive:
        plans = list(itertools.chain(*(planned((method,)) for method in methods)))
        combined = itertools.chain(*on_sizes(sizes, plans).values())
        return Searched([*plans, *smaller, *counted, *allowed(combined), *trained], [])

    def tried(names: Iterable[str], pool: Any) -> Searched:
        return search(tuple(names), pool, losses.estimate, dense, cost, alpha=bound.risk, limit=settings.limit)

    rounds = [tried(methods, planned), tried([smaller_images.METHOD], lambda _: smaller)]
    rounds.append(tried([PUBLISHED], lambda _: counted))
    plans = rounds[0].promising
    risks = [float(losses.estimate(plan).mean()) for plan in plans]
    front = pareto_testing.front([cost(plan) for plan in plans], risks) if plans else []
    # A size that is too expensive alone, or was not tried, may be the one to combine.
    worse = {rejected.plan.name for rejected in rounds[1].rejected}
    by_method = on_sizes([size for size in sizes if size.name not in worse], [plans[index] for index in front])
    rounds.append(tried(by_method, lambda names: allowed(by_method.get("+".join(names), ()))))
    promising, rejected = (list(itertools.chain(*lists)) for lists in zip(*rounds, strict=True))
    return Searched([*promising, *trained], rejected)


def cascades(
    network: Networks,
    table: CostTable,
    losses: Losses,
    plans: Sequence[Candidate],
    bound: Bound,
    settings: Settings,
) -> list[Candidate]:
    """Returns the most promising cascades under thresholds; none where none is asked for, or memory is bounded.

    Args:
      plans: all that were evaluated.
    """
    # A cascade takes the memory of the largest of its networks.
    if not settings.cascades or bound.kind == "memory":
        return []
    predict = lambda smaller: table.predict(smaller, network.dense)
    sizes = smaller_images.sized(network.dense, settings.kept, predict) if settings.smaller_images else []
    planned = [plan for plan in plans if not reads_less(plan, network.dense)]
    risks = [float(losses.estimate(plan, 0).mean()) for plan in planned]
    members = cascade_candidates.members_of(network.dense, table.predict(network.dense), sizes, planned, risks)
    (dense,) = (member for member in members if member.name == DENSE)
    _log.info("Estimating the risks of cascades of %s.", ", ".join(member.name for member in members))
    return cascade_candidates.candidates(members, losses.exits, dense, bound, settings)


def reads_less(candidate: Candidate, dense: Any) -> bool:
    """Whether a candidate reads smaller images than the dense network; a cascade reads the same."""
    return not candidate.members and candidate.model.preprocessing.sides != dense.preprocessing.sides


def _on_smaller_images(network: Networks, table: CostTable, show: Any, settings: Settings) -> list[Candidate]:
    if not settings.smaller_images:
        return []
    predict = lambda smaller: table.predict(smaller, network.dense)
    return smaller_images.candidates(network.dense, show, settings.kept, predict)


def _under_plans(
    sizes: Sequence[Candidate],
    plans: Iterable[Candidate],
    methods: Sequence[str],
    network: Networks,
    table: CostTable,
    settings: Settings,
) -> dict[str, list[Candidate]]:
    """Networks on smaller images under plans, by method; none unless they are asked for.

    Args:
      sizes: the networks on smaller images.
      plans: of the full network; the two families with the most of them are tried on smaller images. Without any, all
        methods are, at the first places.
      methods: all methods.
    """
    if not settings.plans_on_smaller_images or not sizes:
        return {}
    counts = Counter(plan.family for plan in plans if set(plan.method.split("+")) <= set(methods))
    families = [family for family, _ in counts.most_common(_FAMILIES)]
    families = families or [(method, network.places[0]) for method in methods]
    predict = lambda smaller: table.predict(smaller, network.dense)
    by_method: dict[str, list[Candidate]] = {}
    for method, places in families:
        by_method.setdefault(method, []).extend(
            smaller_images.under_plans(sizes, method, places, settings.kept, predict)
        )
    _log.info("Estimating the risks of up to %d plans on smaller images.", settings.limit)
    return by_method
