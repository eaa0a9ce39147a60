"""Images with label maps from a config."""

from typing import Any

from jaxprune import data as loader
from jaxprune.commands.segment.settings import classes_file
from jaxprune.commands.shared import inputs
from jaxprune.commands.shared.dense_settings import preprocessing
from jaxprune.config import Config
from jaxprune.data.joint.segmentation import TrainMaps
from jaxprune.data.maps.label_maps import LabelMaps, read_classes
from jaxprune.nn.patch_embed import pair


def rules(config: Config) -> LabelMaps | None:
    """How stored maps are read; None for the built-in scenes."""
    data = config.data
    if data.source == "scenes":
        return None
    names, palette = read_classes(classes_file(data))
    return LabelMaps(names, palette, tuple(data.ignore), data.reduce_zero_label)


def source(config: Config, split: str) -> Any:
    """Opens the training ("train") or held-out ("eval") examples of `config.data`."""
    data = config.data
    options: dict[str, Any] = {"label_maps": rules(config) or True}
    if data.source == "scenes":
        count = data.num_train if split == "train" else data.num_eval
        options |= {"num_examples": count, "image_size": pair(data.img_size), "seed": config.seed}
    elif data.source == "folder":
        options |= {"path": data.path, "maps": data.maps}
    else:
        options |= {"name": data.name, "data_dir": data.path or None, "maps": data.maps}
    name = data.train_split if split == "train" else data.eval_split
    return loader.create_source(data.source, split=name, **options)


def train_batches(config: Config, examples: Any) -> Any:
    """The endless, shuffled, cropped batches of a training run."""
    data = config.data
    size = pair(data.img_size)
    box = (max(data.box), min(data.box)) if data.box else None
    way = TrainMaps(size, box, tuple(data.ratio), data.class_share, data.distort)
    return inputs.batches_of(config, examples, preprocessing(config), transform=way)
