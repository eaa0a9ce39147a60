"""The settings of `detect`."""

from collections.abc import Iterator

from jaxprune import dense
from jaxprune.commands.shared import groups
from jaxprune.commands.shared.dense_settings import DenseTraining, Encoder, Rates, shrink
from jaxprune.commands.shared.settings import choice, number, path, record, refused, setting
from jaxprune.config import Config
from jaxprune.data.joint.detection import MASKS, TrainObjects
from jaxprune.data.objects.open_objects import ANNOTATIONS, SOURCES
from jaxprune.nn.patch_embed import pair
from jaxprune.preprocessing import IMAGENET_MEAN, IMAGENET_STD


@record(recipe=True)
class ObjectImages:
    """How images and their objects are prepared."""

    img_size: int | tuple[int, int] = number(
        1024, "what the network sees, in pixels: the side of a square, or (height, width)", at_least=1
    )
    scale: tuple[float, float] = number((0.1, 2.0), "range of the scale of images in training, 1: they fit", above=0)
    flip: float = number(0.5, "share of images that are mirrored in training", at_least=0, at_most=1)
    masks: str = choice("polygons", '"polygons", cut exactly; "bitmaps"; or "none", boxes only', MASKS)
    num_objects: int = number(100, "places for the objects of an image in training", at_least=1)
    num_edges: int = number(512, "with polygons: places for the edges of an object", at_least=3)
    num_polygons: int = number(16, "with polygons: places for the polygons of an object", at_least=1)
    mean: tuple[float, float, float] = number(IMAGENET_MEAN, "of pixels from 0 to 1, by channel")
    std: tuple[float, float, float] = number(IMAGENET_STD, "of pixels from 0 to 1, by channel", above=0)


@record()
class ObjectData(ObjectImages):
    """`config.data`: where images and objects come from, and how they are prepared."""

    source: str = choice("scenes", '"scenes", "coco", "yolo" or "voc"', SOURCES, optional=True)
    path: str = setting("", "directory of images and annotations")
    annotations: str = setting(ANNOTATIONS, "of COCO: the JSON file of a split, inside the directory")
    images: str = setting("{split}", "of COCO: the directory of the images of a split, inside the directory")
    classes: str = setting("", "of YOLO: a text file, a class a line; empty: classes.txt or data.yaml")
    train_split: str = setting("train", "split to train on")
    eval_split: str = setting("test", "held-out split")
    held_out: float = number(0.2, "share of a YOLO or VOC directory without splits", above=0, below=1)
    held_out_seed: int = number(0, "seed of that split; use the same for all runs to compare")
    num_train: int = number(10_000, "built-in scenes to train on", at_least=1)
    num_eval: int = number(1_000, "built-in scenes held out", at_least=1)
    num_threads: int = number(8, "threads that read images", at_least=0)

    @staticmethod
    def check(values: Config, prefix: str) -> Iterator[str]:
        """Yields that there is no such directory, or no masks in it, and what the way into a batch refuses."""
        if values.source not in ("", "scenes"):
            yield from groups.missing_folder(values, prefix, "a directory of images and annotations")
        if values.source == "voc" and values.masks != "none":
            yield f"{prefix}source=voc has boxes only: write {prefix}masks=none."
        if values.source == "scenes" and values.masks == "polygons":
            yield f"{prefix}source=scenes has no polygons: write {prefix}masks=bitmaps, or none."
        yield from (f"{prefix[:-1]}: {why}" for why in refused(lambda: train_transform(values)))


@record(recipe=True, is_open=True)
class Head:
    """`config.head`: the network after the encoder, and its arguments."""

    name: str = choice("mask_rcnn", "mask_rcnn or cascade_mask_rcnn", lambda: dense.detectors())


@record(recipe=True)
class Optimizer(Rates):
    """`config.optimizer`: the numbers of AdamW, and rates in steps."""

    milestones: tuple[float, ...] = number(
        (8 / 9, 26 / 27), "shares of the run after which the rate falls", above=0, below=1
    )
    gamma: float = number(0.1, "factor of the rate at each of them", above=0, at_most=1)
    weight_decay: float = number(0.1, "decoupled; of all but absolute positions and the blocks' norms", at_least=0)


@record(recipe=True)
class Settings(DenseTraining):
    """An encoder, a head, images with objects; or a trained detector to test."""

    FIRST = (
        *("data.source", "data.path", "data.masks", "model.name", "model.weights", "head.name", "steps", "frozen"),
        *("detector", "plans"),
    )

    detector: str = path("", "a run of `detect`, or a file of save_model, to test: nothing is trained")
    batch_size: int = number(64, "images a step", at_least=1)
    steps: int = number(184_375, "optimizer steps", at_least=1)
    frozen: bool = setting(False, "train pyramid and heads alone, on an encoder that stays as it is")
    test_batch: int = number(0, "images a batch of the test; 0: that of training", at_least=0, free=True)
    timed_batch: int = number(1, "images a batch when speed is measured", at_least=1, free=True)
    pictures: int = number(6, "images in the report, with their objects and detections", at_least=0, free=True)
    drawn_score: float = number(0.5, "least score of the detections that are drawn", at_least=0, at_most=1, free=True)
    model: Encoder = Encoder(name="vitdet_base_patch16_1024")
    head: Head = Head()
    optimizer: Optimizer = Optimizer(warmup_steps=250, warmup_ratio=0.001, layer_decay=0.7)
    data: ObjectData = ObjectData(masks="bitmaps")

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields what several settings have to do with each other."""
        if not (config.detector or config.data.source):
            yield f"There are no images: give {prefix}data.source, or {prefix}detector, a run to test on its own."
        if "with_masks" in config.head:
            yield f"{prefix}head.with_masks follows from {prefix}data.masks: set that to none for boxes only."


def train_transform(data: Config) -> TrainObjects:
    """How an image and its objects are prepared for a batch of training: jitter, and places for the objects."""
    places = {name: data[name] for name in ("num_objects", "num_edges", "num_polygons")}
    return TrainObjects(pair(data.img_size), tuple(data.scale), data.flip, data.masks, **places)


def smoke(config: Config) -> Config:
    """Shrinks a config of the command to run in seconds on a CPU, on built-in data."""
    shrink(config, masks="none" if config.data.masks == "none" else "bitmaps", num_objects=2)
    config.update(test_batch=0, pictures=min(config.pictures, 2))
    left_out = ("name", "weights", "global_blocks")
    arguments = {name: value for name, value in config.model.to_dict().items() if name not in left_out}
    windowed = config.model.name.startswith("vitdet")
    windows = {"window_size": 2, "pretrain_img_size": 32} if windowed else {}
    tiny = {**groups.TINY, **windows, "depth": 1}  # the heads alone take most of a minute to compile
    config.model = {**arguments, **tiny, "name": "vitdet" if windowed else "vit", "weights": ""}
    small = {"features": 8, "hidden": 8, "anchor_sizes": (4, 8, 12, 16, 24), "rpn_batch": 16, "roi_batch": 16}
    counts = {"before_nms": (32, 16), "after_nms": (16, 8), "max_detections": 4}
    config.head = {**config.head.to_dict(), **small, **counts}
    return config
