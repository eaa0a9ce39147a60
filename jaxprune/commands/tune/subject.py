"""What is tuned: the network of a config, what it is tuned on, and the networks that stand beside its plans."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from jaxprune.commands import segment
from jaxprune.commands.segment import inputs as segment_inputs
from jaxprune.commands.segment.networks import time_of_run, trained, with_recorded
from jaxprune.commands.shared import dense_networks, inputs, networks
from jaxprune.commands.tune.settings import Settings, bound_of
from jaxprune.config import Config
from jaxprune.data.sample import Picked, Sample
from jaxprune.errors import UserError
from jaxprune.evaluate import Batch
from jaxprune.files import as_path
from jaxprune.open import open_network, parse
from jaxprune.preprocessing import Preprocessing
from jaxprune.tune import PixelImages
from jaxprune.tune.blockwise import evaluation_batch


class Subject(NamedTuple):
    """What is tuned, and on what.

    Attributes:
      model: the network.
      origin: its run or file.
      images: for `tune.tune`.
      sample: the examples behind them.
      source: all examples, for the names of broken files.
      data: the settings that the images depend on.
      smaller: a smaller dense network to time, or None.
      healed: networks with weights of their own, {name: network}.
    """

    model: Any
    origin: str
    images: Any
    sample: Sample
    source: Any
    data: Mapping[str, Any]
    smaller: Any
    healed: Mapping[str, Any]


def open_subject(config: Config) -> Subject:
    """Opens the network of a config with its images; its run card says of which kind it is.

    Raises:
      UserError: there is no such network, or a setting does not apply to its kind.
    """
    if networks.detects(config):
        raise UserError(
            f"{config.run} holds a detector, and tune bounds the classes of images or pixels: compare plans by the "
            f"command detect with --config.detector={config.run}."
        )
    return _of_pixels(config) if networks.segments(config) else _of_images(config)


def _of_images(config: Config) -> Subject:
    model = open_network(networks.origin(config), img_size=config.img_size or None, seed=config.seed)
    origin = str(networks.origin(config))
    config = inputs.with_data_of(origin, model.preprocessing, config)
    source = inputs.source(config, "eval")
    if model.num_classes:
        classes = model.num_classes, origin, networks.class_names(origin, model)
        if bound_of(config).counts == "accuracy":
            inputs.require_classes(source, *classes)
        else:
            source = inputs.with_labels_for(source, *classes)
    sample = inputs.sample(config, source)
    show = lambda numbers, record=None: _batches(config, sample, numbers, record)
    smaller = open_network(parse(config.smaller)) if config.smaller else None
    healed = {text: open_network(parse(text)) for text in config.healed}
    return Subject(model, origin, show, sample, source, _read(config), smaller, healed)


def _batches(config: Config, sample: Sample, numbers: np.ndarray, smaller: Preprocessing | None) -> Iterable[Batch]:
    """The images of these numbers; of the size of another record, if it is given."""
    settings: Any = ConfigDict({**config.to_dict(), "batch_size": max(config.batch_size, evaluation_batch())})
    record = None if smaller is None else inputs.preprocessing(config).with_size(smaller.sides)
    return inputs.eval_batches(settings, Picked(sample, numbers.tolist()), record=record)


def _of_pixels(config: Config) -> Subject:
    """A segmentation network: on the images of its run with their label maps, or on other ones without."""
    _require_of_pixels(config)
    run = str(config.run)
    if config.data.source:
        model, _ = dense_networks.trained(run, "dense")
        settings = inputs.with_data_of(run, model.preprocessing, config)
        settings.data.labels = False
        source, has_maps = inputs.source(settings, "eval", in_memory=False), False
    else:
        settings = dense_networks.test_of_run(segment.defaults(), config, "segmenter")
        model, names = trained(settings)
        settings = with_recorded(settings, model)
        source, has_maps = segment_inputs.source(settings, "eval"), True
        inputs.require_classes(source, len(names), run, names)
    sample = inputs.sample(config, source)
    images = PixelImages(
        sample,
        time_of_run(run, model),
        model.preprocessing,
        has_maps=has_maps,
        batch_size=evaluation_batch(),
        num_threads=settings.data.num_threads,
    )
    smaller = _trained((config.smaller,))[0] if config.smaller else None
    healed = dict(zip(config.healed, _trained(config.healed), strict=True))
    return Subject(model, run, images, sample, source, _read(settings), smaller, healed)


def _require_of_pixels(config: Config) -> None:
    """Refuses settings that do not apply to segmentation networks."""
    run, defaults = config.run, Settings.defaults()
    if config.img_size:
        raise UserError(
            f"{run} is tuned at the size of its run, and smaller images are tried by themselves: leave "
            "--config.img_size out."
        )
    if config.neighbours != defaults.neighbours:
        raise UserError(
            f"neighbours={config.neighbours} is for networks without a classifier, and {run} classifies pixels: leave "
            "--config.neighbours out."
        )
    if config.data.source and bound_of(config).counts == "accuracy":
        raise UserError(
            f"Lost accuracy needs label maps, which --config.data.source={config.data.source} does not give to tune: "
            "leave it out for the images of the run, or bound agreement."
        )
    if not config.data.source and not as_path(run).is_dir():
        raise UserError(inputs.no_images(run, config))


def _trained(origins: Sequence[str]) -> list[Any]:
    return [dense_networks.trained(origin, "dense")[0] for origin in origins]


def _read(config: Config) -> dict[str, Any]:
    """The data settings that affect the images, without their location and reading speed."""
    return {name: value for name, value in config.data.to_dict().items() if name != "num_threads"}
