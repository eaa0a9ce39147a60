"""The settings that several commands share: data, optimizer, networks, training."""

import math
import os
from collections.abc import Iterator

import jax

from jaxprune import dynamic, models, parallel
from jaxprune import open as door
from jaxprune.commands.shared.settings import ABSENT, Settings, choice, number, path, record, refused, setting
from jaxprune.config import Config
from jaxprune.data.loader import TRAIN_CROPS
from jaxprune.data.randaugment import RandAugment
from jaxprune.data.source_factory import OBJECTS, SHAPES, SOURCES
from jaxprune.errors import quoted
from jaxprune.nn.patch_embed import pair
from jaxprune.preprocessing import CROPS, IMAGENET_MEAN, IMAGENET_STD, INTERPOLATIONS, Preprocessing
from jaxprune.train.optimizer import OPTIMIZERS

# Compute dtypes of training; weights are float32. Small gradients vanish in float16, whose losses nothing here scales.
DTYPES = ("float32", "bfloat16")
# The network of a smoke run, and a hierarchical one.
TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}


@record()
class Source:
    """A trained network: a run directory, or a published file and the name of its model."""

    run: str = path("", "a run directory")
    name: str = setting("", "name of the model of `weights`", lambda name: name and models.arguments(name))
    weights: str = path("", "a published file", "weights file")


@record(recipe=True)
class Normalised:
    """How pixels of an evaluated image become a network's input."""

    crop_pct: float = number(0.875, "fraction of the shorter side that the centre crop covers", above=0, at_most=1)
    mean: tuple[float, float, float] = number(IMAGENET_MEAN, "of pixels from 0 to 1, by channel")
    std: tuple[float, float, float] = number(IMAGENET_STD, "of pixels from 0 to 1, by channel", above=0)


@record(recipe=True)
class Images(Normalised):
    """How images are prepared and augmented on the host."""

    img_size: int | tuple[int, int] = number(224, "size of the images in pixels", at_least=1)
    crop: str = choice("random_resized", 'or "random_clipped" (linear probe), "random_bordered" (MFF), …', TRAIN_CROPS)
    crop_scale: tuple[float, float] = number((0.2, 1.0), "area of random crops", above=0, at_most=1)
    eval_crop: str = choice("center", 'or "none": the whole image, without keeping its aspect ratio', CROPS)
    interpolation: str = choice("bicubic", "for resizing, in training too", INTERPOLATIONS)
    randaugment: str = setting("", 'a policy, such as "rand-m9-mstd0.5-inc1"', lambda p: p and RandAugment.parse(p))
    cutout: float = number(0.0, "side of a masked square in the image's, before RandAugment", at_least=0, at_most=1)
    repeats: int = number(1, "repeated augmentation: number of crops of each example in a row", at_least=1)


@record()
class Data(Images):
    """`config.data`: where the images come from, and how they are prepared."""

    source: str = choice("scenes", '"scenes", "folder" or "tfds"', SOURCES, optional=True)
    path: str = setting("", "the image folder, or a prepared TFDS directory")
    name: str = setting("", "name of a TFDS data set")
    label_key: str = setting("label", 'of a TFDS data set; "objects.label" for images with several classes')
    labels: bool = setting(True, "False: pre-train on images without labels")
    only_labelled: bool = setting(False, "leave out images of a TFDS data set that have no class", free=True)
    train_split: str = setting("train", "split to train on")
    eval_split: str = setting("test", "held-out split")
    held_out: float = number(0.2, "share of each class of a folder without splits; 0: none", at_least=0, below=1)
    held_out_seed: int = number(0, "seed of that split; use the same for all runs to compare")
    num_train: int = number(10_000, "built-in scenes to train on", at_least=1)
    num_eval: int = number(1_000, "built-in scenes held out", at_least=1)
    objects: str = choice(SHAPES, 'of built-in scenes: "shapes", or "flags", small ones, to prune', OBJECTS, free=True)
    exif: bool = setting(True, "rotate photographs according to their EXIF tags")
    num_frames: int = number(0, "frames of a clip; 0: images. Ignored where a network's record has it", at_least=0)
    frame_stride: int = number(4, "frames of the video per frame of a clip; 0: spread. As num_frames", at_least=0)
    num_clips: int = number(1, "evenly spaced clips per video, whose probabilities are averaged", at_least=1)
    num_crops: int = number(1, "crops of each clip along its longer side, averaged likewise", at_least=1)
    num_threads: int = number(8, "threads that read images", at_least=0)

    @staticmethod
    def check(values: Config, prefix: str) -> Iterator[str]:
        """Yields that there is no such folder, and what the preprocessing refuses."""
        if values.source == "folder":
            yield from missing_folder(values, prefix, "a directory of images")
        if list(values.crop_scale) != sorted(values.crop_scale):
            backwards = tuple(reversed(values.crop_scale))
            yield f"{prefix}crop_scale={values.crop_scale!r} ends below where it begins: write {backwards}."
        yield from refused(lambda: preprocessing(values))


def missing_folder(data: Config, prefix: str, content: str) -> Iterator[str]:
    """Yields that the folder is missing which a source of images reads, and which should be `content`."""
    if not data.path:
        yield f"{prefix}source={data.source} needs {prefix}path, {content}."
    elif not os.path.isdir(os.path.expanduser(data.path)):
        yield f"Image folder {quoted(data.path)} does not exist or is not a directory: check {prefix}path."


def preprocessing(data: Config) -> Preprocessing:
    """The evaluation preprocessing of `config.data`."""
    same = ("crop_pct", "interpolation", "exif", "num_frames", "frame_stride")
    pixels = {"mean": tuple(data.mean), "std": tuple(data.std)}
    return Preprocessing(pair(data.img_size), crop=data.eval_crop, **pixels, **{name: data[name] for name in same})


@record(recipe=True)
class Optimizer:
    """`config.optimizer`: its name, its learning rates, and the numbers of AdamW and LAMB."""

    name: str = choice("adamw", "adamw, lamb, lars or sgd", OPTIMIZERS)
    base_lr: float = number(1e-3, "learning rate for a batch size of lr_norm", above=0)
    lr_norm: float = number(256, "batch size of base_lr; the rate is proportional to the batch size", above=0)
    warmup_epochs: float = number(5.0, "epochs in which the rate rises from warmup_lr", at_least=0)
    warmup_lr: float = number(0.0, "learning rate at the first step", at_least=0)
    min_lr: float = number(0.0, "learning rate at the end", at_least=0)
    cosine_from_start: bool = setting(False, "True: the cosine includes the warm-up epochs (DeiT)")
    milestones: tuple[float, ...] = number((), "epochs that divide the rate by 10, instead of the cosine", above=0)
    b1: float = number(0.9, "decay of the mean of gradients", at_least=0, below=1)
    b2: float = number(0.95, "decay of the mean of squared gradients", at_least=0, below=1)
    weight_decay: float = number(0.05, "decoupled; multiplied by the learning rate", at_least=0)
    clip_norm: float = number(0.0, "maximum norm of the gradients; 0: none", at_least=0)
    momentum: float = number(ABSENT, "of LARS and SGD", at_least=0, below=1, example=0.9)


@record(recipe=True)
class Augment:
    """`config.augment`: augmentation of batches on the device."""

    flip: bool = setting(True, "horizontal flips")
    erasing: float = number(0.25, "probability of erasing a rectangle", at_least=0, at_most=1)
    mixup: float = number(0.8, "parameter of mixup's Beta distribution; 0: none", at_least=0)
    cutmix: float = number(1.0, "parameter of CutMix's Beta distribution; 0: none", at_least=0)
    label_smoothing: float = number(0.1, "share of a target that all classes get", at_least=0, below=1)


@record(is_open=True)
class Sizes:
    """Arguments of a network that replace those of its name."""

    img_size: int | tuple[int, int] | None = number(ABSENT, "size of the images", at_least=1, example=224)
    patch_size: int | tuple[int, ...] | None = number(ABSENT, "size of a patch", at_least=1, example=16)
    embed_dim: int | tuple[int, ...] | None = number(ABSENT, "width of a token", at_least=1, example=192)
    depth: int | tuple[int, ...] | None = number(ABSENT, "number of blocks", at_least=1, example=12)
    num_heads: int | tuple[int, ...] | None = number(ABSENT, "heads of a block", at_least=1, example=3)


@record(is_open=True)
class Model(Sizes):
    """`config.model`: a published file, and the name and the arguments of its network."""

    name: str = setting("", "name of the model", lambda name: require_network(name))
    weights: str = path("", "a published file", "weights file", besides=(door.RANDOM,))


def require_network(name: str) -> None:
    """Checks that a network has a name, if it is not empty: one of `models`, or one of `dynamic`.

    Raises:
      UserError: there is no such network.
    """
    if name and name not in dynamic.methods():
        models.arguments(name)


@record(is_open=True)
class ClassifierFile(Model):
    """`config.model` of a command that inspects a classifier."""

    class_names: str = path("", "text file with one name per line", "file of class names")


@record()
class OnDevices(Settings):
    """The settings of a command that runs on a mesh of devices."""

    mesh: str = setting(
        "data=-1",
        'devices by axis: "fsdp=-1" also shards the parameters, "data=-1,tensor=4" splits heads',
        parallel.mesh_from_text,
    )


@record()
class Training(OnDevices):
    """The settings of every training run."""

    TRAINS = True

    shardings: tuple[str, ...] = setting(
        (), "axes of parameters by name, such as '*.mlp.fc1.kernel=-,tensor'", parallel.rules_from_texts, free=True
    )
    max_minutes: float = number(0.0, "> 0: stop after this time, with a checkpoint and a report", at_least=0)
    accumulate: int = number(1, "number of micro-batches per step, to save memory", at_least=1)
    log_every: int = number(50, "steps between lines of metrics", at_least=1)
    checkpoint_every: int = number(500, "steps between checkpoints", at_least=1)
    keep: int = number(3, "number of checkpoints to keep", at_least=1)
    eval_every: int = number(0, "in steps; 0: only at the end", at_least=0)

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields that a batch cannot be divided evenly over devices, processes and micro-batches."""
        batch, devices = config.batch_size, parallel.batch_parts(parallel.mesh_from_text(config.mesh))
        problem = f"{prefix}batch_size={batch} cannot be divided evenly by"
        for parts, count in {"devices": devices, "processes": jax.process_count()}.items():
            if batch % count:
                yield f"{problem} {count} {parts}: use {math.ceil(batch / count) * count}."
        if batch % config.accumulate:
            divisors = [parts for parts in range(1, batch + 1) if batch % parts == 0]
            nearest = min(divisors, key=lambda parts: abs(parts - config.accumulate))
            yield f"{problem} {prefix}accumulate={config.accumulate} parts: accumulate in {nearest}."


@record(recipe=True)
class Recipe(Training):
    """What a paper says of every training run."""

    batch_size: int = number(64, "images a step", at_least=1)
    epochs: float = number(1.0, "passes over the training images", above=0)
    steps: int = number(
        0, "> 0: length in optimizer steps, to which `epochs` and its warm-up stretch", at_least=0, free=True
    )
    dtype: str = choice("float32", 'compute dtype; "bfloat16" on accelerators', DTYPES)
    data: Data = Data()


def shrink(config: Config) -> None:
    """Shrinks the settings of `Recipe` to seconds on a CPU, on built-in data."""
    config.data.update(source="scenes", path="", name="", img_size=32, num_train=32, num_eval=12, num_threads=1)
    config.update(batch_size=8, epochs=1.0, steps=0, log_every=2, checkpoint_every=2, max_minutes=0.0, dtype="float32")
    config.mesh = "data=-1"
    config.optimizer.warmup_epochs = 0.5
