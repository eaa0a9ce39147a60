"""Images with objects from a config."""

from typing import Any

from jaxprune.commands.detect.settings import training_objects
from jaxprune.commands.shared import inputs
from jaxprune.commands.shared.dense_settings import preprocessing
from jaxprune.config import Config
from jaxprune.data.objects.coco import CocoObjects
from jaxprune.data.objects.open_objects import open_objects
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
    data, trains = config.data, split == "train"
    options: dict[str, Any] = {name: data[name] for name in _OPTIONS[data.source]}
    if data.source == "scenes":
        count = data.num_train if trains else data.num_eval
        options |= {"num_examples": count, "image_size": pair(data.img_size), "seed": config.seed}
    if data.source == "coco":
        options["with_objects"] = trains
    return open_objects(data.source, split=data.train_split if trains else data.eval_split, **options)


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
        objects = [annotated for annotated in examples.objects(index) if not annotated.crowd]
        counts = {"num_objects": ("image", len(objects), "objects")}
        if polygons and objects:
            edges = max(sum(len(part) // 2 for part in annotated.polygons) for annotated in objects)
            parts = max(len(annotated.polygons) for annotated in objects)
            counts |= {"num_edges": ("object", edges, "edges"), "num_polygons": ("object", parts, "polygons")}
        for name, (kind, count, things) in counts.items():
            if count > data[name]:
                raise UserError(
                    f"{examples.path(index)} has an {kind} of {count} {things}, and there is room for "
                    f"config.data.{name}={data[name]}: use {round(1.25 * count)}."
                )


def train_batches(config: Config, examples: Any) -> Any:
    """The endless, shuffled, jittered batches of a training run."""
    return inputs.batches_of(config, examples, preprocessing(config), transform=training_objects(config.data))
