"""The time and the memory of whole networks on this device: dense, a smaller one, and under plans."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxprune import flops
from jaxprune.bench.timing import OverRounds, interleaved
from jaxprune.evaluate.contestants import Runner, random_images
from jaxprune.reduction import DENSE
from jaxprune.tune.candidates import Candidate
from jaxprune.tune.cascade_candidates import mixture
from jaxprune.tune.cost_table import Cost
from jaxprune.tune.requirement import Bound
from jaxprune.tune.store import Store
from jaxprune.tune.tuned import SMALLER, Settings
from jaxprune.weights.fingerprint import fingerprint

Timed = Mapping[str, tuple[OverRounds, float]]  # {name: (seconds, megabytes)}


def timed_in_turns(
    dense: Any,
    smaller: Any,
    plans: Sequence[Candidate],
    settings: Settings,
    store: Store,
    cascades: Sequence[Candidate] = (),
) -> Timed:
    """Times whole networks in turns: dense, a smaller one (or None), and plans; cascades by their networks.

    Args:
      cascades: their time in a round is the mixture of those of their networks, see `cascade_candidates.mixture`.
    """
    members = {member.name: member.model for cascade in cascades for member in cascade.members}
    networks = {DENSE: dense, SMALLER: smaller, **{plan.name: plan.model for plan in plans}, **members}
    networks = {name: model for name, model in networks.items() if model is not None}

    def make() -> dict[str, np.ndarray]:
        runners = {name: Runner(model, random_images(model, settings.batch_size)) for name, model in networks.items()}
        turns = interleaved(runners, settings.rounds)
        megabytes = [flops.temporary_bytes(runner.program) / 2**20 for runner in runners.values()]
        return {
            "seconds": np.array([[turn.wall for turn in turns[name]] for name in networks]),
            "megabytes": np.array(megabytes),
        }

    digest = "" if smaller is None else fingerprint(smaller)
    part = "whole networks" + "".join(f", {plan.name}" for plan in plans[:1]) + ", cascades" * bool(cascades)
    arrays = store.arrays(part, make, networks=list(networks), smaller=digest, **timing(settings))
    measurements = zip(networks, arrays["seconds"], arrays["megabytes"], strict=True)
    rounds = {name: [Cost(float(wall), float(memory)) for wall in walls] for name, walls, memory in measurements}
    for cascade in cascades:
        of_members = [rounds[member.name] for member in cascade.members]
        rounds[cascade.name] = [mixture(costs, cascade.reach) for costs in zip(*of_members, strict=True)]
    return {
        name: (OverRounds.of([cost.seconds for cost in costs]), costs[0].megabytes) for name, costs in rounds.items()
    }


def together(earlier: Timed, later: Timed) -> Timed:
    """The times of two runs as if all were of the later one; the dense network, timed in both, gives the factor."""
    if not earlier:
        return later
    relation = later[DENSE][0].median / earlier[DENSE][0].median
    scaled = {name: (seconds.scaled(relation), megabytes) for name, (seconds, megabytes) in earlier.items()}
    return {**scaled, **later}


def timed_within(
    dense: Any, smaller: Any, front: Sequence[Candidate], bound: Bound, settings: Settings, store: Store
) -> tuple[Sequence[Candidate], Timed]:
    """Times some plans of the front at a time, the safest first, until one keeps to a bound on cost, or dense does."""
    timed: Timed = {}
    end = 0
    while end == 0 or end < len(front):
        plans, end = front[end : end + settings.most_tested], end + settings.most_tested
        timed = together(timed, timed_in_turns(dense, smaller, plans, settings, store))
        costs = [Cost(timed[name][0].median, timed[name][1]) for name in (DENSE, *(plan.name for plan in plans))]
        if any(bound.against(costs[0]).holds(cost, settings.batch_size) for cost in costs):
            break
    return front[:end], timed


def timing(settings: Settings) -> dict[str, Any]:
    """The settings that timings depend on."""
    device = {"device": jax.devices()[0].device_kind, "platform": jax.devices()[0].platform}
    return {"batch_size": settings.batch_size, "rounds": settings.rounds, **device}
