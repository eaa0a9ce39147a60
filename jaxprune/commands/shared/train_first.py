"""Trains the runs that a task inspects, if the config contains the configs of their trainings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune import commands
from jaxprune.commands.shared import inputs
from jaxprune.config import Config

TRAIN = "train"  # key of the training's config, and its directory inside the run directory
FURTHER = "train_"  # so begin the keys of the configs of further trainings, and their directories


def brings_run(config: Config) -> bool:
    """Whether a config names no network, but contains the config of a training."""
    return TRAIN in config and not (config.run or ("model" in config and config.model.weights))


def missing_network(config: Config) -> Iterator[str]:
    """Yields that there is no network to examine."""
    if not (brings_run(config) or config.run or config.model.weights):
        yield "Give --config.run=RUN, or --config.model.weights=FILE with --config.model.name=NAME, the network."


def missing(config: Config) -> Iterator[str]:
    """Yields that there is no network to examine, or no images to show to it."""
    yield from missing_network(config)
    origin, pictures = config.run or config.model.weights, "images" in config and config.images
    if origin and not (pictures or inputs.has_images(origin, config)):
        yield inputs.no_images(origin, config)


def with_run(config: Config, workdir: Path) -> tuple[Config, dict[str, Any] | None]:
    """Runs the trainings that a config contains, if any.

    Args:
      config: config of a task that reads `config.run`; `config.train` is the config of another task. Those of
        `config.train_…` start from that run, unless they say otherwise, and their runs join `config.networks`.
      workdir: run directory of the task; a training goes to a subdirectory, and is not repeated once complete.

    Returns:
      The config with `run` set to the trained run, and the summary of the training if a signal stopped it.
    """
    if brings_run(config):
        summary = _trained(config, TRAIN, {}, workdir)
        config = ConfigDict({**config.to_dict(), "run": str(workdir / TRAIN)})
        if summary.get("stopped"):
            return config, {"phase": TRAIN, **summary}
    for key in sorted(name for name in config if name.startswith(FURTHER)):
        start = {} if config[key].run or config[key].model.weights else {"run": config.run}
        summary = _trained(config, key, start, workdir)
        config = ConfigDict({**config.to_dict(), "networks": (*config.networks, str(workdir / key))})
        if summary.get("stopped"):
            return config, {"phase": key, **summary}
    return config, None


def _trained(config: Config, key: str, start: dict[str, str], workdir: Path) -> dict[str, Any]:
    """Runs the training of a key, and returns its summary."""
    training: Config = ConfigDict({**config[key].to_dict(), **start, "seed": config.seed})
    return commands.find(training.task)(training, workdir / key)
