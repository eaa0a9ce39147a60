"""The settings of `segment`."""

import os
from collections.abc import Iterator
from pathlib import Path

from jaxprune import dense, models
from jaxprune.commands.shared import groups
from jaxprune.commands.shared.dense_settings import DenseTraining, Encoder, Rates, shrink
from jaxprune.commands.shared.settings import ABSENT, choice, number, path, record, refused, setting
from jaxprune.config import Config
from jaxprune.data.source_factory import SOURCES
from jaxprune.errors import UserError
from jaxprune.evaluate.segmentation.at_test import MODES, TestTime
from jaxprune.nn.patch_embed import pair
from jaxprune.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from jaxprune.train.optimizer import OPTIMIZERS


@record(recipe=True)
class MapImages:
    """How images and their label maps are prepared."""

    img_size: int | tuple[int, int] = number(512, "what the network sees, in pixels", at_least=1)
    box: tuple[int, ...] = number((2048, 512), "longest and shortest side at ratio 1; (): img_size itself", at_least=1)
    ratio: tuple[float, float] = number((0.5, 2.0), "range of the factor of the box in training", above=0)
    class_share: float = number(0.75, "crops with more of one class are drawn again; 0: any", at_least=0, at_most=1)
    flip: bool = setting(True, "horizontal flips in training")
    distort: bool = setting(True, "photometric distortion in training")
    mean: tuple[float, float, float] = number(IMAGENET_MEAN, "of pixels from 0 to 1, by channel")
    std: tuple[float, float, float] = number(IMAGENET_STD, "of pixels from 0 to 1, by channel", above=0)


@record()
class MapData(MapImages):
    """`config.data`: where images and label maps come from, and how they are prepared."""

    source: str = choice("scenes", '"scenes", "folder" or "tfds"', SOURCES, optional=True)
    path: str = setting("", "folder with images and label maps for each split, or a prepared TFDS directory")
    name: str = setting("", 'name of a TFDS data set, such as "scene_parse150"')
    classes: str = setting("", 'text file, a class a line; "scene_parse150"; empty: classes.txt in the folder')
    maps: str = setting("", "name of the directory, or of the TFDS feature, of label maps; empty: found by name")
    ignore: tuple[int, ...] = number((), "values in maps without a class, besides 255", at_least=0)
    reduce_zero_label: bool = setting(False, "value 0 has no class, and v is class v - 1 (ADE20K)")
    train_split: str = setting("train", "split to train on")
    eval_split: str = setting("test", "held-out split")
    num_train: int = number(10_000, "built-in scenes to train on", at_least=1)
    num_eval: int = number(1_000, "built-in scenes held out", at_least=1)
    num_threads: int = number(8, "threads that read images", at_least=0)

    @staticmethod
    def check(values: Config, prefix: str) -> Iterator[str]:
        """Yields that there are no classes or no folder, and ranges that end below where they begin."""
        content = "a directory of images and label maps"
        missing = list(groups.missing_folder(values, prefix, content)) if values.source == "folder" else []
        yield from missing
        if not missing and values.source in ("folder", "tfds") and not classes_file(values):
            yield f"{prefix}source={values.source} needs {prefix}classes, a text file with one class a line."
        if values.ratio[0] > values.ratio[1]:
            yield f"{prefix}ratio={values.ratio!r} ends below where it begins: write {tuple(reversed(values.ratio))}."
        if len(values.box) not in (0, 2):
            yield f"{prefix}box={values.box!r} needs two lengths, or none: write (2048, 512)."


def classes_file(values: Config) -> str:
    """The file of classes of `config.data`; empty if there is none."""
    beside = Path(values.path).expanduser() / "classes.txt"
    return values.classes or (str(beside) if values.path and os.path.isfile(beside) else "")


@record(recipe=True, is_open=True)
class Head:
    """`config.head`: the network after the encoder, and its arguments."""

    name: str = choice("upernet", "linear, fcn, upernet, segvit or dtop", lambda: dense.methods())


@record(recipe=True)
class Optimizer(Rates):
    """`config.optimizer`: its name, and rates in steps."""

    name: str = choice("adamw", "adamw, lamb or lars", OPTIMIZERS)
    power: float = number(1.0, "of the decay over all steps; 1: linear", at_least=0)
    min_lr: float = number(0.0, "learning rate at the end", at_least=0)
    weight_decay: float = number(0.05, "decoupled; of all but vectors and biases", at_least=0)
    momentum: float = number(ABSENT, "of LARS", at_least=0, below=1, example=0.9)


@record(recipe=True)
class Test:
    """`config.test`: how images are tested."""

    mode: str = choice("slide", '"slide", windows over images resized to data.box; or "whole"', MODES)
    stride: tuple[int, ...] = number((), "of windows, rows and columns; (): two thirds of them", at_least=1)
    flip: bool = setting(False, "mirrored images count too")
    scales: tuple[float, ...] = number((1.0,), "factors of the box, whose probabilities are averaged", above=0)
    batch_size: int = number(0, "images a batch, of features too; 0: that of training", at_least=0, free=True)

    __test__ = False  # no test of pytest


@record(recipe=True)
class Settings(DenseTraining):
    """An encoder, a head, images with label maps; or a trained segmentation network to test."""

    FIRST = (
        *("data.source", "data.path", "data.classes", "model.name", "model.weights", "head.name", "steps", "frozen"),
        *("segmenter", "plans"),
    )

    segmenter: str = path("", "a run of `segment`, or a file of save_model, to test: nothing is trained")
    batch_size: int = number(16, "images a step, and a batch of the test", at_least=1)
    steps: int = number(160_000, "optimizer steps", at_least=1)
    frozen: bool = setting(False, "train the head alone, on features computed once, without crops")
    mirrors: bool = setting(True, "with frozen: features of mirrored images too", free=True)
    valid_only: bool = setting(False, "average the loss over labelled pixels; published: over all")
    timed_batch: int = number(4, "images, or windows, a batch when speed is measured", at_least=1, free=True)
    pictures: int = number(6, "images with the lowest IoU in the report", at_least=0, free=True)
    model: Encoder = Encoder(name="vit_base_patch16_224")
    head: Head = Head()
    optimizer: Optimizer = Optimizer()
    data: MapData = MapData()
    test: Test = Test()

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields what several settings have to do with each other."""
        if not (config.segmenter or config.data.source):
            yield f"There are no images: give {prefix}data.source, or {prefix}segmenter, a run to test on its own."
        yield from (f"{prefix}test: {why}" for why in refused(lambda: test_time(config)))


def test_time(config: Config) -> TestTime:
    """How `config.test` tests images."""
    data, test = config.data, config.test
    size = pair(data.img_size)
    if test.stride and len(test.stride) != 2:
        raise UserError(f"stride={tuple(test.stride)} needs rows and columns: write (341, 341).")
    box = tuple(data.box) or size
    return TestTime(size, test.mode, (max(box), min(box)), tuple(test.stride), test.flip, tuple(test.scales))


test_time.__test__ = False  # type: ignore[attr-defined]


def smoke(config: Config) -> Config:
    """Shrinks a config of the command to run in seconds on a CPU, on built-in data."""
    shrink(config, name="", ignore=(), reduce_zero_label=False, box=(64, 32) if config.data.box else ())
    config.test = {**config.test.to_dict(), "stride": ()}
    kind = models.arguments(config.model.name)
    kept = {name: kind[name] for name in ("style", "init_values", "qkv_bias") if kind.get("style") and name in kind}
    depth = 4 if config.head.name == "upernet" else 3
    arguments = {name: value for name, value in config.model.to_dict().items() if name not in ("name", "weights")}
    config.model = {**kept, **arguments, **groups.TINY, "depth": depth, "name": "vit", "weights": ""}
    small = {"features": 8, "auxiliary_features": 8, "head_heads": 2}
    head = {name: value for name, value in config.head.to_dict().items() if name != "indices"}
    takes = {field for field in small if field in _arguments(config.head.name)}
    config.head = {**head, **{name: value for name, value in small.items() if name in takes}}
    return config


def _arguments(head: str) -> set[str]:
    from jaxprune import plugins

    return set(plugins.parameters(dense.methods()[head]))
