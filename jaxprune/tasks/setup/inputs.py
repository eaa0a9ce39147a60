"""From a config to images: sources, batches, and the mesh they are spread over."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from jaxprune import data as loader
from jaxprune import parallel
from jaxprune.config import Config
from jaxprune.data.augment import normalize
from jaxprune.errors import UserError
from jaxprune.nn.patch_embed import pair
from jaxprune.preprocessing import Preprocessing
from jaxprune.tasks.setup import defaults


def source(config: Config, split: str) -> Any:
    """Opens the training ("train") or held-out ("eval") examples that `config.data` names."""
    data = config.data
    options: dict[str, Any] = {
        "scenes": {
            "num_examples": data.num_train if split == "train" else data.num_eval,
            "image_size": data.img_size,
            "seed": config.seed,
        },
        "folder": {"path": data.path, "labels": data.labels},
        "tfds": {
            "name": data.name,
            "data_dir": data.path or None,
            "labels": data.labels,
            "label_key": data.get("label_key", "label"),
        },
    }.get(data.source, {})
    chosen = data.train_split if split == "train" else data.eval_split
    return loader.create_source(data.source, split=chosen, **options)


def train_batches(config: Config, examples: Any) -> Any:
    """The endless, shuffled, cropped batches of a training run."""
    data = config.data
    return loader.train_batches(
        examples,
        batch_size=config.batch_size,
        image_size=data.img_size,
        seed=config.seed,
        crop=data.crop,
        scale=tuple(data.crop_scale),
        repeats=data.get("repeats", 1),
        randaugment=data.get("randaugment", ""),
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        num_threads=data.num_threads,
    )


def eval_batches(config: Config, examples: Any, img_size: tuple[int, int] | None = None) -> Any:
    """One pass over the held-out examples, of `img_size` in place of the config's; the last batch is padded."""
    return loader.eval_batches(
        examples,
        batch_size=config.batch_size,
        image_size=img_size or config.data.img_size,
        crop=config.data.get("eval_crop", "center"),
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )


def recorded_config(run: str | Path) -> dict[str, Any]:
    """The config that a run directory was made with."""
    return json.loads((Path(run) / "config.json").read_text())["config"]


def with_data_of(run: str | Path, config: Config) -> Config:
    """The config with the data settings of a run, except where `config.data` names a source of its own.

    A `config.img_size` other than 0 takes the place of the size that the run was trained with.
    """
    own = config.get("data")
    chosen = own.to_dict() if own is not None and own.source else recorded_config(run)["data"]
    size = {"img_size": config.img_size} if config.get("img_size") else {}
    return ConfigDict({**config.to_dict(), "data": {**defaults.data(), **chosen, **size}})


def held_out(config: Config, run: str | Path, class_names: Sequence[str]) -> Any:
    """Opens the held-out examples of `config.data` for the classifier in `run`.

    Raises:
      UserError: they have another number of classes than `class_names`.
    """
    examples = source(config, "eval")
    if examples.num_classes != len(class_names):
        raise UserError(
            f"The data have {examples.num_classes} classes and {run} knows {len(class_names)}: give the data "
            "it was trained on."
        )
    return examples


def preprocessing(config: Config) -> Preprocessing:
    """How the images of a run's network are prepared for evaluation."""
    data = config.data
    return Preprocessing(pair(data.img_size), crop=data.eval_crop, mean=tuple(data.mean), std=tuple(data.std))


def normalized(config: Config, images: jax.Array) -> jax.Array:
    """Pixels 0–255 to what the networks read."""
    return normalize(images, config.data.mean, config.data.std)


def mesh(config: Config) -> jax.sharding.Mesh:
    """The device mesh of `config.mesh`, such as "data=-1" or "data=2,fsdp=4"."""
    return parallel.mesh_from_text(config.mesh)
