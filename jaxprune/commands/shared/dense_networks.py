"""What `segment` and `detect` share: a network of encoder and head, new, in training, under plans, or tested."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx
from ml_collections import ConfigDict

from jaxprune import checkpoints, processes, reduction
from jaxprune import data as loader
from jaxprune import open as door
from jaxprune.bench.costs import PlanCost, costs
from jaxprune.checkpoints.build import build
from jaxprune.checkpoints.run import write_card
from jaxprune.commands.shared import inputs, networks
from jaxprune.commands.shared.dense_page import Tested
from jaxprune.commands.shared.dense_settings import preprocessing
from jaxprune.config import Config
from jaxprune.dense import ExitSegmenter
from jaxprune.errors import UserError
from jaxprune.evaluate.contestants import contestant, contestants, gflops, on_smaller_images, random_images
from jaxprune.files import as_path
from jaxprune.nn.params import Split, split
from jaxprune.reduction import DENSE

WITHOUT_EXITS = "without exits"  # a network with exits whose tokens all go on
ENCODER = "encoder."  # begins the names of its parameters

# The arrays of networks by name, as `evaluate` runs them: their parts, and all their arrays.
Arrays = dict[str, tuple[Split, dict[str, Any]]]


class Learner(NamedTuple):
    """A network in training.

    Attributes:
      parts: the whole network.
      params: the parameters that learn.
      frozen: those of a frozen encoder, which do not.
    """

    parts: Split
    params: dict[str, Any]
    frozen: dict[str, Any]


def new(config: Config, **arguments: Any) -> Any:
    """Builds the network of `config.model` and `config.head`, its encoder started from the weights of the config.

    Args:
      arguments: those of the network that neither group has, such as the number of classes.
    """
    model = networks.model_arguments(config)
    arguments = {"encoder": model.pop("name"), **model, **config.head.to_dict(), **arguments}
    network = build("dense", arguments, dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    if start := networks.start_of(config):
        door.initialise(network.encoder, start)
        network.training_images = network.encoder.training_images
    network.preprocessing = preprocessing(config)
    if config.plan:
        plan = networks.plan(config, config.plan)
        scorer = networks.guide(config, network) if plan.at_input else None
        network = reduction.apply(network, plan, scorer=scorer, rngs=nnx.Rngs(config.seed))
    return network


def learner(config: Config, network: Any, workdir: Path, class_names: Sequence[str]) -> Learner:
    """Divides a new network into what learns and what does not, and writes its card."""
    parts = split(network)
    frozen = {name: x for name, x in parts.params.items() if config.frozen and name.startswith(ENCODER)}
    params = {name: x for name, x in parts.params.items() if name not in frozen}
    write_card(workdir, network, class_names, fixed=frozen or None)
    return Learner(parts, params, frozen)


def trained(origin: str, kind: str) -> tuple[Any, tuple[str, ...]]:
    """Returns the network of a run or a file, and its classes.

    Args:
      kind: "dense" or "detector".

    Raises:
      UserError: it is no such network.
    """
    card = checkpoints.load_card(origin).require(kind, origin)
    return checkpoints.load_model(origin), card.class_names


def plan_text(network: Any) -> str | None:
    """The plan of a network as text; None if it has none."""
    return None if network.plan is None else str(network.plan)


def under_plans(config: Config, network: Any, rivals: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the network as it is, under each of `config.plans`, and on smaller images of about their FLOPs.

    Args:
      rivals: networks to put beside it, by name, instead of those.
    """
    first = DENSE if network.plan is None else network.plan.text
    if rivals is not None:
        return {first: network, **rivals}
    plans = networks.plans(config)
    scorer = networks.guide(config, network) if any(plan.at_input for plan in plans.values()) else None
    candidates = contestants(network, plans, scorer=scorer, seed=config.seed)
    if config.smaller_images and plans:
        candidates |= on_smaller_images(candidates)
    candidates |= networks.rivals(config, network)
    models = {name: candidate.model for name, candidate in candidates.items() if name != DENSE}
    exits = {WITHOUT_EXITS: network.without_exits()} if isinstance(network, ExitSegmenter) else {}
    return {first: network, **exits, **models}


def with_recorded(config: Config, origin: str, network: Any, img_size: int | tuple[int, int], remedy: str) -> Config:
    """Returns a config whose `data` is that of the run of the network, if it names no source.

    Sizes and normalisation are always the network's.

    Args:
      origin: the run directory, or a file, which has no data.
      img_size: the size of the network's images, as the command's config states it.
      remedy: the settings to give where there is no run.

    Raises:
      UserError: there is neither a source nor a run.
    """
    record = network.preprocessing
    values: dict[str, Any] = config.to_dict()
    if not config.data.source:
        if not as_path(origin).is_dir():
            raise UserError(f"{origin} has no data set: give {remedy}.")
        recorded = inputs.recorded_config(origin, group="data")
        values |= {"data": {**values["data"], **recorded["data"]}, "seed": recorded["seed"]}
    values["data"] |= {"img_size": img_size, "mean": record.mean, "std": record.std}
    return ConfigDict(values)


def test_of_run(defaults: Config, config: Config, key: str) -> Config:
    """Returns the settings of `segment` or `detect` that test the network of `config.run` as its own run did.

    Args:
      defaults: those of the command.
      config: of another command; its plans, and what goes with them, are taken.
      key: the setting that names the network.

    Raises:
      UserError: the config has other images, or another size.
    """
    if ("data" in config and config.data.source) or ("img_size" in config and config.img_size):
        raise UserError(
            f"{config.run} is tested as its run did, on the images of that: leave --config.data.source and "
            f"--config.img_size out, or use the command {defaults.task} with --config.{key}={config.run}."
        )
    recorded = inputs.recorded_config(config.run) if as_path(config.run).is_dir() else {}
    values: dict[str, Any] = {**defaults.to_dict(), key: str(config.run)}
    of_run = ("batch_size", "test", "test_batch")
    overrides = ("plans", "keep_rate", "reduction_loc", "scorer", "smaller_images", "seed", "mesh")
    values |= {name: recorded[name] for name in of_run if name in values and name in recorded}
    values |= {name: config[name] for name in overrides if name in config}
    return ConfigDict({**values, "data": {**values["data"], "source": ""}})


def arrays(by_plan: Mapping[str, Any]) -> Arrays:
    """Returns the parts of each network, and all its arrays."""
    parts = {name: split(network) for name, network in by_plan.items()}
    return {name: (part, {**part.params, **part.rest}) for name, part in parts.items()}


def speeds(
    config: Config,
    by_plan: Mapping[str, Any],
    gflops: Mapping[str, float],
    images: Callable[[Any, int], jax.Array] = random_images,
) -> dict[str, PlanCost]:
    """The speed of each network, in turns with the first one.

    Args:
      gflops: of each network.
      images: (network, number) -> normalised images of the size that it reads.
    """
    first, *reduced = by_plan
    timed = {DENSE: contestant(by_plan[first])} | {name: contestant(by_plan[name]) for name in reduced}
    counted = dict(zip(timed, (gflops[name] for name in by_plan), strict=True))
    measured = costs(timed, config.timed_batch, config.rounds, images=images, gflops=counted)
    return dict(zip((first, *reduced), measured, strict=True))


def conclude_test(
    config: Config,
    workdir: Path,
    by_plan: Mapping[str, Any],
    outcomes: Mapping[str, Any],
    source: Any,
    *,
    scores: Callable[[Any], dict[str, Any]],
    describe: Callable[..., None],
    beside: Callable[[Any], dict[str, Any]] = lambda outcome: {},
    cost: Callable[[Any, Any], float] = lambda network, outcome: gflops(network),
    images: Callable[[Any, int], jax.Array] = random_images,
) -> dict[str, Any]:
    """Measures the speed of tested networks if `config.rounds` asks for it, and writes the report; returns the summary.

    Args:
      by_plan: the networks, that as it is first.
      outcomes: what each made of the images of `source`.
      scores: outcome -> the numbers of a summary.
      beside: outcome -> further numbers of a network in the comparison.
      cost: (network, outcome) -> GFLOPs of an image that it reads, with the scorer of its plan.
      images: see `speeds`.
      describe: called with (config, workdir, summary, source, tests=) in the writing process.
    """
    counted = {name: cost(by_plan[name], outcome) for name, outcome in outcomes.items()}
    timed = speeds(config, by_plan, counted, images) if config.rounds else {}
    tests = {name: Tested(outcome, counted[name], timed.get(name)) for name, outcome in outcomes.items()}
    (network, *_), (first, *_) = by_plan.values(), outcomes.values()
    summary = {**scores(first), "data": loader.describe(source), "plan": plan_text(network)}
    summary["plans"] = {
        name: {**scores(test.outcome), **beside(test.outcome), "gflops": test.gflops}
        | ({"speed-up": test.cost.promise.factor} if test.cost else {})
        for name, test in tests.items()
    }
    if processes.leads():
        describe(config, workdir, summary, source, tests=tests)
    processes.wait("described")
    return summary
