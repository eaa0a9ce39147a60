"""The run that a task examines, trained first where the config brings that training along."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune import tasks
from jaxprune.config import Config
from jaxprune.tasks.setup import inputs

TRAIN = "train"  # the key of that training's config, and its directory inside of the run's


def brings_run(config: Config) -> bool:
    """Whether a config names no network, and how to train one in place of it."""
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
    """Trains the run that a config brings along, if it does.

    Args:
      config: of a task that reads `config.run`; `config.train` is the config of another task.
      workdir: of the task; the run goes into a directory in it, and stays when it is complete.

    Returns:
      The config with that run as its `run`, and the summary of the training if a signal stopped it.
    """
    if not brings_run(config):
        return config, None
    training: Config = ConfigDict({**config.train.to_dict(), "seed": config.seed})
    config = ConfigDict({**config.to_dict(), "run": str(workdir / TRAIN)})
    summary = tasks.find(training.task)(training, workdir / TRAIN)
    return config, {"phase": TRAIN, **summary} if summary.get("stopped") else None
