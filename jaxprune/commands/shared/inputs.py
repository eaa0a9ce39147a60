"""Builds images from a config: sources, batches, and the mesh that they are sharded over."""

import dataclasses
import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxprune import data as loader
from jaxprune import parallel
from jaxprune.commands.shared import groups
from jaxprune.config import Config
from jaxprune.data.broken_examples import read_or_next
from jaxprune.data.held_out import is_split_here
from jaxprune.data.sample import Pictures, Sample
from jaxprune.data.transform import Transform, WithSmallerImages
from jaxprune.errors import UserError, quoted, shortened
from jaxprune.files import as_path, read_text
from jaxprune.nn.images import normalize
from jaxprune.nn.patch_embed import pair
from jaxprune.open import Classifier
from jaxprune.preprocessing import Preprocessing
from jaxprune.train import workdir as workdirs

_log = logging.getLogger(__name__)

# The settings of `config.data` that the sources take as they are.
_OPTIONS = {
    "folder": ("path", "labels", "exif", "held_out", "held_out_seed"),
    "tfds": ("name", "labels", "label_key", "only_labelled", "exif"),
}


_OF_CLIPS = {"num_frames", "frame_stride"}  # ignored where the network's record has them
_WITHOUT_LABELS = ("pretrain", "train_ranker")  # tasks that train without labels
_LOOKED_AT = 512  # training images, at most, on which losses are measured where none is held out


def source(config: Config, split: str, *, in_memory: bool | None = None) -> Any:
    """Opens the training ("train") or held-out ("eval") examples of `config.data`.

    Where nothing is held out, the latter are some of the training images; see `nothing_held_out`.

    Args:
      in_memory: see `create_source`.
    """
    data, record = config.data, preprocessing(config)
    views = loader.Views(record, data.num_clips, data.num_crops) if record.num_frames else None
    if views is not None and data.source == "tfds":
        raise UserError("TFDS data sets have images, but the network reads clips: give config.data.source=folder.")
    options: dict[str, Any] = {name: data[name] for name in _OPTIONS.get(data.source, ())}
    if data.source == "scenes":
        count = data.num_train if split == "train" else data.num_eval
        options |= {"num_examples": count, "image_size": pair(data.img_size), "seed": config.seed}
        options["objects"] = data.objects
    if data.source == "tfds":
        options["data_dir"] = data.path or None
    elif data.source:
        options["views"] = views
    if nothing_held_out(config):
        options["held_out"] = 0.0
        everything = loader.create_source(data.source, in_memory=in_memory, **options)
        return everything if split == "train" else Sample(everything, min(len(everything), _LOOKED_AT))
    name = data.train_split if split == "train" else data.eval_split
    return loader.create_source(data.source, split=name, in_memory=in_memory, **options)


def nothing_held_out(config: Config) -> bool:
    """Whether a run trains on all images of a folder: where there are no labels and no splits, none is kept back."""
    if config.task not in _WITHOUT_LABELS or config.data.source != "folder":
        return False
    return not config.data.labels and is_split_here(config.data.path, config.data.eval_split)


def train_batches(config: Config, examples: Any, beside: Any = None) -> Any:
    """The endless, shuffled, cropped batches of a training run.

    Args:
      beside: draws further arrays of each example, see `data.train_batches`.
    """
    data = config.data
    options = {name: data[name] for name in ("crop", "repeats", "randaugment", "cutout")}
    return batches_of(config, examples, preprocessing(config), scale=tuple(data.crop_scale), beside=beside, **options)


def batches_of(config: Config, examples: Any, record: Preprocessing, **options: Any) -> Any:
    """The endless, shuffled batches of a training run on this process.

    Args:
      record: how images are read.
      options: of `data.train_batches`.
    """
    return loader.train_batches(
        examples,
        batch_size=config.batch_size,
        preprocessing=record,
        seed=config.seed,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        num_threads=config.data.num_threads,
        **options,
    )


def eval_batches(
    config: Config,
    examples: Any,
    *,
    changes: tuple[Any, ...] = (),
    record: Preprocessing | None = None,
    networks: Iterable[Any] = (),
) -> Any:
    """One pass over the held-out examples, transformed by `changes`; the last batch is padded.

    Args:
      record: the preprocessing, instead of that of `config.data`.
      networks: those that run on the batches; the images of those on smaller ones are prepared too.
    """
    record = record or preprocessing(config)
    sizes = {network.preprocessing.img_size for network in networks} - {record.img_size}
    smaller = () if record.num_frames else tuple(sorted(sizes))
    return loader.eval_batches(
        examples,
        batch_size=config.batch_size,
        preprocessing=record,
        transform=WithSmallerImages(Transform(record, augment=changes), smaller) if smaller else None,
        changes=changes,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )


def first_images(config: Config, examples: Any) -> np.ndarray:
    """The images of the first batch of held-out examples, each once: without padding, which repeats the last one."""
    batch = next(iter(eval_batches(config, examples)))
    _, places = np.unique(batch["index"], return_index=True)
    return batch["image"][np.sort(places)]


def preprocessing(config: Config) -> Preprocessing:
    """The evaluation preprocessing of `config.data`."""
    return groups.preprocessing(config.data)


def prepared_as(record: Preprocessing) -> dict[str, Any]:
    """The settings of `config.data` for which `preprocessing` returns the record."""
    values = dict(vars(record))
    return {"eval_crop": values.pop("crop"), **values}


def recorded_config(run: str | Path, *, group: str = "") -> dict[str, Any]:
    """The config of a run directory.

    Args:
      group: settings that it has to have, such as "data".

    Raises:
      UserError: it is missing or damaged.
    """
    path = as_path(run) / workdirs.CONFIG
    try:
        recorded = json.loads(read_text(path))["config"]
        if not isinstance(recorded, dict) or (group and not isinstance(recorded[group], dict)):
            raise ValueError("no settings")
        return recorded
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read as the config of a run ({shortened(repr(error))}): copy it from a run of the same "
            "config, or give the images by --config.data.source=folder and --config.data.path=FOLDER."
        ) from error


def has_images(origin: str | Path, config: Config) -> bool:
    """Whether there are images for the network from `origin`: those of its run, or of `config.data`."""
    return bool(config.data.source) or as_path(origin).is_dir()


def no_images(origin: str | Path, config: Config) -> str:
    """The error message if neither the run of the network nor `config.data` has images."""
    pictures = "--config.images=FOLDER, or " if "images" in config else ""
    return (
        f"{origin} has no data set: give {pictures}--config.data.source=folder with "
        "--config.data.path=FOLDER, or another source."
    )


def with_data_of(origin: str | Path, record: Preprocessing, config: Config) -> Config:
    """Returns the config with the data settings for a network to inspect.

    The source of the images is that of `config.data`, if set, else that of the network's training, with the settings of
    `config.data` that differ from their defaults. Preprocessing always follows the network's record.

    Args:
      origin: run directory or file of the network.
      record: the network's preprocessing.

    Raises:
      UserError: `config.data` has no source, and a file has none either; or a setting of it has no effect.
    """
    if not has_images(origin, config):
        raise UserError(no_images(origin, config))
    prepared = prepared_as(record)
    changes = _changes(config, prepared)
    recorded = {} if config.data.source else recorded_config(origin, group="data")
    # The built-in scenes depend on the seed.
    seed = {"seed": recorded["seed"]} if recorded else {}
    values = {**recorded["data"], **changes} if recorded else config.data.to_dict()
    if recorded and "path" in changes and values["source"] == "scenes":
        raise UserError(
            f"config.data.path={quoted(changes['path'])} has no effect: {origin} was trained on built-in scenes, so "
            "give --config.data.source=folder too."
        )
    # Runs of earlier versions lack newer settings, and did not split folders.
    settings = {**dataclasses.asdict(groups.Data()), "held_out": 0.0, **values, **prepared}
    return ConfigDict({**config.to_dict(), **seed, "data": settings})


def _changes(config: Config, prepared: dict[str, Any]) -> dict[str, Any]:
    """The settings of `config.data` that differ from their defaults, but for those of the preprocessing.

    Args:
      prepared: those of the network's preprocessing.

    Raises:
      UserError: others are asked for than the network's.
    """
    defaults, plain = dataclasses.asdict(groups.Data(source="")), lambda value: np.ravel(value).tolist()
    changed = {
        name: value
        for name, value in config.data.to_dict().items()
        if name in defaults and plain(value) != plain(defaults[name])
    }
    for name, value in changed.items():
        sides = pair(value) if name == "img_size" else value
        if name in prepared.keys() - _OF_CLIPS and plain(sides) != plain(prepared[name]):
            raise UserError(
                f"config.data.{name}={quoted(value)} has no effect, because images are prepared as for the network, "
                f"with {name}={quoted(prepared[name])}: leave it out."
            )
    return {name: value for name, value in changed.items() if name not in prepared}


def held_out(config: Config, classifier: Classifier) -> Any:
    """Opens the held-out examples of `config.data` for a classifier.

    Raises:
      UserError: their number of classes differs from the classifier's, an image has several classes, or its class is
        not known.
    """
    examples = source(config, "eval")
    require_one_class(examples)
    require_known_classes(examples)
    require_classes(examples, len(classifier.class_names), classifier.origin, classifier.class_names)
    return examples


def sample(config: Config, examples: Any) -> Sample:
    """An evenly spread sample of `config.num_images` of the examples; 0: all of them."""
    return Sample(examples, config.num_images or len(examples))


def require_one_class(examples: Any) -> None:
    """Refuses images of several classes each, which have no accuracy.

    Raises:
      UserError: see above.
    """
    if np.ndim(read_or_next(examples, 0)["label"]):
        raise UserError(
            f"The images of {examples.name} have several classes each, and this command compares single predictions: "
            "configs/analyse.py reports the average precision of such classifiers."
        )


def require_known_classes(examples: Any) -> None:
    """Refuses images whose classes the data set keeps back, such as those of ImageNet's test split: all are -1.

    Raises:
      UserError: see above.
    """
    label = read_or_next(examples, 0)["label"]
    if not np.ndim(label) and label < 0:
        raise UserError(
            f"The classes of the images of {examples.name} are not known, so a network can neither learn from them nor "
            "be tested on them: give another split as config.data.train_split or config.data.eval_split, such as "
            "'validation'."
        )


def require_classes(examples: Any, num_classes: int, origin: str | Path, class_names: Sequence[str] = ()) -> None:
    """Refuses examples of other classes than those of the network from `origin`.

    Data sets name the same classes in several ways, so other names are taken; a name that both know at another place is
    not.

    Args:
      num_classes: of the network.
      class_names: of the network; empty where they are not known.

    Raises:
      UserError: see above.
    """
    if examples.num_classes != num_classes:
        raise UserError(
            f"The data have {examples.num_classes} classes and {origin} knows {num_classes}: give the data it was "
            "trained on."
        )
    names, network_names = tuple(getattr(examples, "class_names", None) or ()), tuple(class_names)
    if names != network_names and sorted(names) == sorted(network_names):
        number = next(number for number, name in enumerate(names) if name != network_names[number])
        raise UserError(
            f"The data have the classes of {origin} in another order: class {number} is {names[number]!r} and "
            f"{network_names[number]!r} there. Give them in the same order."
        )
    if network_names == tuple(map(str, range(num_classes))):  # numbers of classes whose names are not known
        return
    for number, name in enumerate(names):
        if name in network_names and not any(pair == (name, name) for pair in zip(names, network_names, strict=True)):
            raise UserError(
                f"The data have other classes than {origin}: {name!r} is class {number} of the data and "
                f"{network_names.index(name)} of the network. Give the data it was trained on."
            )


def with_labels_for(examples: Any, num_classes: int, origin: str | Path, class_names: Sequence[str]) -> Any:
    """Returns examples, without their labels where `require_classes` refuses these; a line of the log says why."""
    if not examples.num_classes:
        return examples
    try:
        require_classes(examples, num_classes, origin, class_names)
    except UserError as error:
        _log.warning("Labels are ignored, so there is no accuracy. %s", error)
        return Pictures(examples)
    return examples


def require_two_classes(train: Any, held_out: Any) -> None:
    """Refuses examples that a classifier cannot be trained or tested on.

    Raises:
      UserError: they have no classes, or a single one, or the classes are not known.
    """
    if train.num_classes < 2:
        classes = "one class" if train.num_classes else "no classes"
        raise UserError(
            f"The images of {train.name} have {classes}, and a classifier learns to tell two or more apart: give a "
            "folder with a directory of images for each class, and leave config.data.labels as it is."
        )
    for examples in (train, held_out):
        require_known_classes(examples)


def allowed_classes(config: Config, examples: Any) -> tuple[int, ...] | None:
    """The classes to predict under `config.only_present`: those of the examples; None for all.

    ImageNet-A and -R have images of 200 of the thousand classes, and are evaluated on these.
    """
    if not config.only_present:
        return None
    labels = getattr(examples, "labels", None)
    if labels is None:
        batches = loader.eval_batches(examples, batch_size=config.batch_size, preprocessing=preprocessing(config))
        labels = np.concatenate([batch["label"][batch["valid"]] for batch in batches])
    return tuple(np.unique(labels).tolist())


def normalized(config: Config, images: jax.Array) -> jax.Array:
    """Normalises pixels from 0 to 255 for the networks."""
    record = preprocessing(config)
    return normalize(images, record.mean, record.std)


def mesh(config: Config) -> jax.sharding.Mesh:
    """The device mesh of `config.mesh`, such as "data=-1" or "data=2,fsdp=4"."""
    return parallel.mesh_from_text(config.mesh)
