"""Trains the run that a task inspects, if the config contains the config of its training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune import commands
from jaxprune.commands.shared import inputs
from jaxprune.config import Config

TRAIN = "train"  # key of the training's config, and its directory inside the run directory


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
    """Runs the training that a config contains, if any.

    Args:
      config: config of a task that reads `config.run`; `config.train` is the config of another task.
      workdir: run directory of the task; the training goes to a subdirectory, and is not repeated once complete.

    Returns:
      The config with `run` set to the trained run, and the summary of the training if a signal stopped it.
    """
    if not brings_run(config):
        return config, None
    training: Config = ConfigDict({**config.train.to_dict(), "seed": config.seed})
    config = ConfigDict({**config.to_dict(), "run": str(workdir / TRAIN)})
    summary = commands.find(training.task)(training, workdir / TRAIN)
    return config, {"phase": TRAIN, **summary} if summary.get("stopped") else None
