"""Heals a segmentation network or a detector under its plans; the test of its own command compares what is left."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxprune.commands import detect, segment
from jaxprune.commands.detect import inputs as object_inputs
from jaxprune.commands.detect import networks as detectors
from jaxprune.commands.detect.run import test as test_objects
from jaxprune.commands.recover import page
from jaxprune.commands.recover.students import Healing, heal_all
from jaxprune.commands.segment import inputs as map_inputs
from jaxprune.commands.segment import networks as segmenters
from jaxprune.commands.segment.run import test as test_pixels
from jaxprune.commands.shared import dense_networks, inputs, networks, reporting
from jaxprune.config import Config
from jaxprune.data.sample import Pictures
from jaxprune.data.source import Source
from jaxprune.errors import UserError


class _Command(NamedTuple):
    """The command that trains and tests a kind of network, and the key of its network in a config."""

    module: Any
    key: str
    networks: Any
    inputs: Any
    test: Callable[..., dict[str, Any]]


_SEGMENT = _Command(segment, "segmenter", segmenters, map_inputs, test_pixels)
_DETECT = _Command(detect, "detector", detectors, object_inputs, test_objects)


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Heals the network of `config.run` under each plan, and the rivals, and tests all on the images of its run.

    It learns from `config.data`, which needs no annotations, or from the training images of its run.

    Raises:
      UserError: the config asks for what only classifiers have.
    """
    if config.num_images:
        raise UserError(f"{config.run} is tested on all images, as its run did: leave --config.num_images out.")
    if len(config.keep_rates) > 1:
        raise UserError(f"{config.run} is tested under its plans alone: leave --config.keep_rates out.")
    command = _SEGMENT if networks.segments(config) else _DETECT
    elsewhere = ConfigDict({**config.to_dict(), "data": {**config.data.to_dict(), "source": ""}})
    settings = dense_networks.test_of_run(command.module.defaults(), elsewhere, command.key)
    settings.update(rounds=config.rounds, timed_batch=config.timed_batch)
    teacher, class_names = command.networks.trained(settings)
    healing = heal_all(config, workdir, teacher, _train(config, settings, command, teacher), class_names)
    if healing.stopped:
        return healing.stopped
    tested = command.test(settings, workdir, _before_and_after(healing))
    slug = f"recover-{Path(config.run).name}"
    with reporting.report_section(workdir, str(config.run), "Healed under its plans", slug) as section:
        page.describe_healing(section, healing, length=page.length_of(config))
    return {name: _words(scores) for name, scores in tested["plans"].items()}


def _words(scores: Mapping[str, float]) -> str:
    """The first score of a network, its agreement and speed-up."""
    score = next(iter(scores))
    shares = [f"{name} {scores[name]:.1%}" for name in (score, "agreement") if name in scores]
    return ", ".join([*shares, f"speed-up {scores['speed-up']:.3g}"])


def _train(config: Config, settings: Config, command: _Command, teacher: Any) -> Source:
    """The images to learn from."""
    if config.data.source:
        config = inputs.with_data_of(config.run, teacher.preprocessing, config)
        config.data.labels = False  # a folder needs no classes
        return inputs.source(config, "train")
    return Pictures(command.inputs.source(command.networks.with_recorded(settings, teacher), "train"))


def _before_and_after(healing: Healing) -> Mapping[str, Any]:
    """Every network before, and healed."""
    by_name: dict[str, Any] = {}
    for name, network in healing.healed.items():
        by_name |= {f"{name}, before": healing.students[name], name: network}
    return by_name
