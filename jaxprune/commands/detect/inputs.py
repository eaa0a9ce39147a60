"""Images with objects from a config."""

import itertools
from typing import Any

from jaxprune.commands.detect.settings import train_transform
from jaxprune.commands.shared import inputs
from jaxprune.commands.shared.dense_settings import preprocessing
from jaxprune.config import Config
from jaxprune.data.objects.coco import CocoObjects
from jaxprune.data.objects.open_objects import open_objects
from jaxprune.data.objects.scenes import SceneObjects
from jaxprune.data.objects.truth import Truth
from jaxprune.data.objects.voc import VocObjects
from jaxprune.errors import UserError
from jaxprune.nn.patch_embed import pair

# The settings of `config.data` that the sources take as they are.
_OPTIONS = {
    "scenes": (),
    "coco": ("path", "annotations", "images"),
    "yolo": ("path", "classes", "held_out", "held_out_seed"),
    "voc": ("path", "held_out", "held_out_seed"),
}


def source(config: Config, split: str) -> Any:
    """Opens the training ("train") or held-out ("eval") examples of `config.data`."""
    data, of_training = config.data, split == "train"
    options: dict[str, Any] = {name: data[name] for name in _OPTIONS[data.source]}
    if data.source == "scenes":
        count = data.num_train if of_training else data.num_eval
        options |= {"num_examples": count, "image_size": pair(data.img_size), "seed": config.seed}
    if data.source == "coco":
        options["with_objects"] = of_training
    return open_objects(data.source, split=data.train_split if of_training else data.eval_split, **options)


def require_same_classes(class_names: Any, held_out: Any, origin: str) -> None:
    """Refuses held-out examples of other classes.

    Args:
      class_names: of the network.
      origin: of the network, for messages.

    Raises:
      UserError: see above.
    """
    if tuple(class_names) != tuple(held_out.class_names):
        raise UserError(
            f"The held-out images have {len(held_out.class_names)} classes and {origin} {len(class_names)}, or others "
            "of these names: give the data it was trained on."
        )


def require_room(examples: Any, data: Config) -> None:
    """Refuses annotations of COCO or VOC that do not fit the places of a batch, before hours of training.

    Objects whose polygons are cut by a crop may have a few more edges and polygons.

    Raises:
      UserError: an image or an object has more than there are places.
    """
    if not isinstance(examples, CocoObjects | VocObjects):
        return
    polygons = data.masks == "polygons"
    for index in range(len(examples)):
        objects = [entry for entry in examples.objects(index) if not entry.crowd]
        path = examples.path(index)
        needs = {"num_objects": (path, len(objects), "objects")}
        if polygons and objects:
            edges = max(sum(len(polygon) // 2 for polygon in entry.polygons) for entry in objects)
            polygons_of_one = max(len(entry.polygons) for entry in objects)
            of_one = f"An object in {path}"
            needs |= {"num_edges": (of_one, edges, "edges"), "num_polygons": (of_one, polygons_of_one, "polygons")}
        for name, (holder, count, things) in needs.items():
            if count > data[name]:
                raise UserError(
                    f"{holder} has {count} {things}, and there is room for "
                    f"config.data.{name}={data[name]}: use {round(1.25 * count)}."
                )


def require_masks(examples: Any, truth: Truth, data: Config) -> None:
    """Refuses objects without masks where masks are learnt and tested, before hours of training.

    Args:
      examples: those of training; empty for a test alone.
      truth: the held-out objects.

    Raises:
      UserError: an object is a box only.
    """
    if data.masks == "none":
        return
    names = {entry["id"]: entry.get("file_name", entry["id"]) for entry in truth.content["images"]}
    held_out = (names[entry["image_id"]] for entry in truth.content["annotations"] if not entry.get("segmentation"))
    boxed = [] if isinstance(examples, SceneObjects) else range(len(examples))
    of_training = (
        examples.path(index)
        for index in boxed
        if any(not (entry.crowd or entry.polygons or entry.runs) for entry in examples.objects(index))
    )
    if (file := next(itertools.chain(of_training, held_out), None)) is not None:
        raise UserError(
            f"{file} has an object without a mask: write config.data.masks=none, to train and test boxes alone."
        )


def train_batches(config: Config, examples: Any) -> Any:
    """The endless, shuffled, jittered batches of a training run."""
    return inputs.batches_of(config, examples, preprocessing(config), transform=train_transform(config.data))
