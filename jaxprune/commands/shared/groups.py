"""The settings that several commands share: data, optimizer, networks, plans, scorers, training, inspection."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxprune import models, parallel
from jaxprune import open as door
from jaxprune.commands.shared.networks import PROPOSAL, plan, proposal
from jaxprune.commands.shared.settings import ABSENT, Settings, choice, number, path, record, refused, setting
from jaxprune.config import Config
from jaxprune.data.loader import TRAIN_CROPS
from jaxprune.data.randaugment import RandAugment
from jaxprune.data.source_factory import SOURCES
from jaxprune.errors import UserError
from jaxprune.nn.patch_embed import pair
from jaxprune.preprocessing import CROPS, IMAGENET_MEAN, IMAGENET_STD, INTERPOLATIONS, Preprocessing
from jaxprune.train.optimizer import OPTIMIZERS

# Compute dtypes; weights are float32.
DTYPES = ("float32", "bfloat16", "float16")
# The network of a smoke run, and a hierarchical one.
TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
TINY_STAGES = {
    "img_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": (1, 1),
    "num_heads": (1, 2),
    "window_size": 3,
}

_MESH = 'devices by axis: "fsdp=-1" also shards the parameters; -1 takes the remaining devices'


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
    crop: str = choice("random_resized", 'or "random_clipped", as MAE\'s linear probe; "center" or "none"', TRAIN_CROPS)
    crop_scale: tuple[float, float] = number((0.2, 1.0), "area of random crops", above=0, at_most=1)
    eval_crop: str = choice("center", 'or "none": the whole image, without keeping its aspect ratio', CROPS)
    interpolation: str = choice("bicubic", "for resizing, in training too", INTERPOLATIONS)
    randaugment: str = setting(
        "", 'a policy, such as "rand-m9-mstd0.5-inc1"', lambda policy: policy and RandAugment.parse(policy)
    )
    cutout: float = number(
        0.0,
        "side of a masked square, as a fraction of the image's; applied before RandAugment; 0: none",
        at_least=0,
        at_most=1,
    )
    repeats: int = number(1, "repeated augmentation: number of crops of each example in a row", at_least=1)


@record()
class Data(Images):
    """`config.data`: where the images come from, and how they are prepared."""

    source: str = choice("scenes", '"scenes", "folder" or "tfds"', SOURCES, optional=True)
    path: str = setting("", "the image folder, or a prepared TFDS directory")
    name: str = setting("", "name of a TFDS data set")
    label_key: str = setting(
        "label", 'key of the labels in a TFDS data set; "objects.label" for images with several classes'
    )
    labels: bool = setting(True, "False: pre-train on images without labels")
    train_split: str = setting("train", "split to train on")
    eval_split: str = setting("test", "held-out split")
    held_out: float = number(
        0.2, "fraction of each class held out from a folder without splits; 0: none", at_least=0, below=1
    )
    held_out_seed: int = number(0, "seed of that split; use the same for all runs to compare")
    num_train: int = number(10_000, "number of built-in scenes to train on", at_least=1)
    num_eval: int = number(1_000, "number of built-in scenes held out", at_least=1)
    exif: bool = setting(True, "rotate photographs according to their EXIF tags")
    num_frames: int = number(0, "frames of a clip; 0: images. Ignored where a network's record has it", at_least=0)
    frame_stride: int = number(
        4, "video frames between frames of a clip; 0: spread over the video. As num_frames", at_least=0
    )
    num_clips: int = number(
        1, "evenly spaced clips per video, over which predicted probabilities are averaged", at_least=1
    )
    num_crops: int = number(1, "crops of each clip along its longer side, averaged likewise", at_least=1)
    num_threads: int = number(8, "threads that read images", at_least=0)

    @staticmethod
    def check(values: Config, prefix: str) -> Iterator[str]:
        """Yields that there is no such folder, and what the preprocessing refuses."""
        if values.source == "folder" and not values.path:
            yield f"{prefix}source=folder needs {prefix}path, a directory of images."
        elif values.source == "folder" and not Path(values.path).expanduser().is_dir():
            yield f"Image folder {values.path!r} does not exist or is not a directory: check {prefix}path."
        if list(values.crop_scale) != sorted(values.crop_scale):
            backwards = tuple(reversed(values.crop_scale))
            yield f"{prefix}crop_scale={values.crop_scale!r} ends below where it begins: write {backwards}."
        yield from refused(lambda: preprocessing(values))


def preprocessing(data: Config) -> Preprocessing:
    """The evaluation preprocessing of `config.data`."""
    return Preprocessing(
        pair(data.img_size),
        crop=data.eval_crop,
        crop_pct=data.crop_pct,
        interpolation=data.interpolation,
        mean=tuple(data.mean),
        std=tuple(data.std),
        exif=data.exif,
        num_frames=data.num_frames,
        frame_stride=data.frame_stride,
    )


def one_view(config: Config) -> Iterator[str]:
    """Yields that several views of a video are asked for, of a command that reads a single one."""
    if config.data.num_clips * config.data.num_crops > 1:
        yield (
            f"config.data.num_clips={config.data.num_clips} and config.data.num_crops={config.data.num_crops}: "
            f"{config.task} reads one view of a video; leave both at 1."
        )


@record(recipe=True)
class Optimizer:
    """`config.optimizer`: its name, its learning rates, and the numbers of AdamW and LAMB."""

    name: str = choice("adamw", "adamw, lamb or lars", OPTIMIZERS)
    base_lr: float = number(1e-3, "learning rate for a batch size of lr_norm", above=0)
    lr_norm: float = number(256, "batch size of base_lr; the rate is proportional to the batch size", above=0)
    warmup_epochs: float = number(5.0, "epochs in which the rate rises from warmup_lr", at_least=0)
    warmup_lr: float = number(0.0, "learning rate at the first step", at_least=0)
    min_lr: float = number(0.0, "learning rate at the end", at_least=0)
    cosine_from_start: bool = setting(False, "True: the cosine includes the warm-up epochs (DeiT)")
    milestones: tuple[float, ...] = number(
        (), "epochs at which the rate drops by a factor of 10, instead of the cosine (SimMIM)", above=0
    )
    b1: float = number(0.9, "decay of the mean of gradients", at_least=0, below=1)
    b2: float = number(0.95, "decay of the mean of squared gradients", at_least=0, below=1)
    weight_decay: float = number(0.05, "decoupled; multiplied by the learning rate", at_least=0)
    clip_norm: float = number(0.0, "maximum norm of the gradients; 0: none", at_least=0)
    momentum: float = number(ABSENT, "of LARS", at_least=0, below=1, example=0.9)


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

    name: str = setting("", "name of the model", lambda name: name and models.arguments(name))
    weights: str = path("", "a published file", "weights file", besides=(door.RANDOM,))


@record(is_open=True)
class ClassifierFile(Model):
    """`config.model` of a command that inspects a classifier."""

    class_names: str = path("", "text file with one name per line", "file of class names")


@record()
class Training(Settings):
    """The settings of every training run."""

    TRAINS = True

    max_minutes: float = number(0.0, "> 0: stop after this time, with a checkpoint and a report", at_least=0)
    accumulate: int = number(1, "number of micro-batches per step, to save memory", at_least=1)
    mesh: str = setting("data=-1", _MESH, parallel.mesh_from_text)
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
    dtype: str = choice("float32", 'compute dtype; "bfloat16" on accelerators', DTYPES)
    data: Data = Data()


def shrink(config: Config) -> None:
    """Shrinks the settings of `Recipe` to seconds on a CPU, on built-in data."""
    config.data.update(source="scenes", path="", name="", img_size=32, num_train=32, num_eval=12, num_threads=1)
    config.update(batch_size=8, epochs=1.0, log_every=2, checkpoint_every=2, max_minutes=0.0, dtype="float32")
    config.mesh = "data=-1"
    config.optimizer.warmup_epochs = 0.5


@record()
class Inspection(Settings):
    """The settings of a command that inspects a run directory: `evaluate`, `predict`, `visualize`, …"""

    run: str = path("", "a run directory, or a file written by save_model")
    batch_size: int = number(64, "images a batch", at_least=1)
    data: Data = Data(source="")  # the run's data
    mesh: str = setting("data=-1", _MESH, parallel.mesh_from_text)


@record()
class ClassifierInspection(Inspection):
    """The settings of a command that inspects a classifier: `evaluate`, `predict`, `prune`, `benchmark`.

    The classifier is a run directory or a file of `save_model` (`run`), or a published file (`model.weights` of the
    network `model.name`; `model.class_names` is a text file with one name per line). Images are prepared as its card
    says, or as in timm for that name: `data` only sets the source of the images and the number of views of a video.
    """

    model: ClassifierFile = ClassifierFile()
    img_size: int | tuple[int, int] = number(
        0, "replaces the network's size, and its positions are resampled; 0: the network's", at_least=0
    )
    frame_stride: int = number(
        -1, "replaces the network's stride for clips; 0: spread over the video; -1: the network's", at_least=-1
    )


@record()
class FeatureInspection(Inspection):
    """The settings of a command that reads a network's features or predictions, with or without a classifier.

    As for `ClassifierInspection`, except that a published file has no class names.
    """

    model: Model = Model()
    img_size: int | tuple[int, int] = number(
        0, "replaces the network's size, and its positions are resampled; 0: the network's", at_least=0
    )


@record()
class Amounts:
    """What the text of a plan may leave out."""

    keep_rate: float = number(0.7, "for a plan without an amount", above=0, at_most=1)
    reduction_loc: tuple[int, ...] = setting((3, 6, 9), "for a plan without blocks")


def scorer_texts(default: tuple[str, ...], about: str = "scorers, each with its options") -> Any:
    """Declares several scorers."""
    return setting(default, about, _refuse_scorers)


def scorer_text(default: str, about: str) -> Any:
    """Declares a scorer, or none."""
    return setting(default, about, lambda text: _refuse_scorers((text,)), free=True)


def _refuse_scorers(texts: Iterable[str]) -> None:
    for text in filter(None, texts):
        origin = door.parse_scorer(text).origin
        if origin is not None and not door.exists(origin):
            raise UserError(f"There is no run directory or file {origin}, which the scorer {text!r} reads: check it.")


def scorers_without_network(texts: Sequence[str], host: bool, convnet: door.Origin | None) -> list[str]:
    """Returns the scorers that lack a network; opens nothing.

    Args:
      texts: the scorers.
      host: whether there is a transformer whose patches they rank.
      convnet: what they read by default.
    """
    usable = [text for text in texts if text and not refused(lambda text=text: _refuse_scorers((text,)))]
    networks = door.NetworkCache(host=host or None, proposal=convnet)
    return [why for text in usable for why in refused(lambda text=text: door.require_network(text, networks))]


@record()
class OnePlan(Amounts):
    """One plan to reduce a network by."""

    plan: str = setting("", "empty: the network as it is")

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields why the plan cannot be used."""
        if config.plan:
            yield from (f"{prefix}plan={config.plan!r}: {why}" for why in refused(lambda: plan(config, config.plan)))


@record()
class Plans(Amounts):
    """Plans to compare, and the scorer of those that drop patches by scores."""

    plans: tuple[str, ...] = setting((), "token-reduction plans")
    scorer: str = scorer_text(
        "", 'for plans with from_scores: "norm", "ltrp:run=RUN", "papr:model=NAME,weights=FILE", …'
    )

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields why plans cannot be used."""
        yield from plan_problems(config, prefix, has_scorer=bool(config.scorer))

    @staticmethod
    def missing(config: Config) -> list[str]:
        """Returns that the scorer lacks a network."""
        return scorers_without_network((config.scorer,), True, proposal(PROPOSAL))


@record()
class ManyPlans:
    """Plans to compare at several keep rates, on several networks."""

    networks: tuple[str, ...] = setting(
        (), 'in addition to `run` or `model`: run directories, or texts such as "weights=FILE,name=NAME"'
    )
    plans: tuple[str, ...] = setting(("topk", "evit", "ats", "tome", "kmedoids", "dpc_knn", "l2"), "plans to compare")
    keep_rates: tuple[float, ...] = number(
        (0.7, 0.5), "for plans without an amount; Random is always included", above=0, at_most=1
    )
    reduction_loc: tuple[int, ...] = setting((3, 6, 9), "for plans without blocks")

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields why plans cannot be used."""
        yield from plan_problems(config, prefix, has_scorer=False)


def plan_problems(config: Config, prefix: str, *, has_scorer: bool) -> Iterator[str]:
    """Yields why the plans of `config.plans` cannot be used."""

    def refuse(text: str) -> None:
        if plan(config, text).at_input and not has_scorer:
            raise UserError("It drops patches by scores and needs a scorer, such as --config.scorer=norm.")

    for text in config.plans:
        yield from (f"{prefix}plans={text!r}: {why}" for why in refused(lambda text=text: refuse(text)))


@record()
class Scorers:
    """Scorers of patches, and the ConvNet that they read."""

    scorers: tuple[str, ...] = scorer_texts(())
    proposal: str = setting(PROPOSAL, "the ConvNet that scorers such as papr and cam read by default")
    weights: str = path("", "weights of the proposal; empty: those of the installed package", "weights file")

    @staticmethod
    def missing(config: Config) -> list[str]:
        """Returns the scorers that lack a network."""
        has_host = bool(config.run or config.model.weights)
        return scorers_without_network(config.scorers, has_host, proposal(config.proposal, config.weights))


@record()
class Ranked(Scorers, Normalised, Settings):
    """Scorers of the patches of a ViT, or of a grid where there is none."""

    run: str = path("", "a run directory with the ViT whose patches are ranked")
    model: Model = Model()
    batch_size: int = number(16, "images a batch", at_least=1)
    img_size: int | tuple[int, int] = number(0, "without a ViT: the size of the images; 0: 224", at_least=0)
    grid: tuple[int, ...] = number((), "without a ViT: the grid of patches; empty: (14, 14)", at_least=1)
    mesh: str = setting("data=-1", _MESH, parallel.mesh_from_text)
