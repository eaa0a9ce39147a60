"""Settings shared by the configs of several tasks, with their defaults and their values under `:smoke`."""

from typing import Any

from ml_collections import ConfigDict

from jaxprune.config import Config

# Compute dtypes; weights are float32.
DTYPES = ("float32", "bfloat16", "float16")
# The default ConvNet of patch scorers.
PROPOSAL = "efficientnet_lite0"
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


def data() -> dict[str, Any]:
    """Returns the defaults of `config.data`."""
    return {
        "source": "scenes",  # "scenes", "folder" or "tfds"
        "path": "",  # the image folder, or a prepared TFDS directory
        "name": "",  # name of a TFDS data set
        "label_key": "label",  # key of the labels in a TFDS data set; "objects.label" for images with several classes
        "labels": True,  # False: pre-train on images without labels
        "train_split": "train",
        "eval_split": "test",
        "held_out": 0.2,  # fraction of each class held out from a folder without splits; 0: none
        "held_out_seed": 0,  # seed of that split; use the same for all runs to compare
        "img_size": 224,
        "num_train": 10_000,  # number of built-in scenes to train on
        "num_eval": 1_000,
        "crop": "random_resized",  # or "random_clipped", as MAE's linear probe; "center" or "none"
        "eval_crop": "center",  # or "none": the whole image, without keeping its aspect ratio
        "crop_pct": 0.875,  # fraction of the shorter side that the centre crop covers
        "interpolation": "bicubic",  # for resizing, in training too
        "exif": True,  # rotate photographs according to their EXIF tags
        "crop_scale": (0.2, 1.0),
        "randaugment": "",  # a policy, such as "rand-m9-mstd0.5-inc1"
        "cutout": 0.0,  # side of a masked square, as a fraction of the image's; applied before RandAugment; 0: none
        "repeats": 1,  # repeated augmentation: number of crops of each example in a row
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "num_frames": 0,  # frames of a clip; 0: images. Ignored where a network's record has it
        "frame_stride": 4,  # video frames between frames of a clip; 0: spread over the video. As num_frames
        "num_clips": 1,  # evenly spaced clips per video, over which predicted probabilities are averaged
        "num_crops": 1,  # crops of each clip along its longer side, averaged likewise
        "num_threads": 8,
    }


def training(task: str) -> dict[str, Any]:
    """Returns the defaults common to all training tasks."""
    return {
        "task": task,
        "seed": 0,
        "workdir": "",  # empty: runs/<name of the config file>
        "batch_size": 64,
        "epochs": 1.0,
        "max_minutes": 0.0,  # > 0: stop after this time, with a checkpoint and a report
        "accumulate": 1,  # number of micro-batches per step, to save memory
        "dtype": "float32",  # compute dtype; "bfloat16" on accelerators
        "data": data(),
        "mesh": "data=-1",  # devices by axis: "fsdp=-1" also shards the parameters; -1 takes the remaining devices
        "log_every": 50,
        "checkpoint_every": 500,
        "keep": 3,  # number of checkpoints to keep
        "eval_every": 0,  # in steps; 0: only at the end
    }


def schedule(*, base_lr: float, warmup_epochs: float, min_lr: float = 0.0) -> dict[str, Any]:
    """Returns the learning-rate settings common to all `config.optimizer`."""
    return {
        "base_lr": base_lr,  # learning rate for a batch size of lr_norm
        "lr_norm": 256,
        "warmup_epochs": warmup_epochs,
        "warmup_lr": 0.0,
        "min_lr": min_lr,
        "cosine_from_start": False,  # True: the cosine includes the warm-up epochs (DeiT)
        "milestones": (),  # epochs at which the rate drops by a factor of 10, instead of the cosine (SimMIM)
    }


def adamw(*, b2: float, weight_decay: float, **rate: float) -> dict[str, Any]:
    """Returns `config.optimizer` of a task that trains with AdamW; `rate` has the arguments of `schedule`."""
    return {
        **schedule(**rate),
        "b1": 0.9,
        "b2": b2,
        "weight_decay": weight_decay,
        "clip_norm": 0.0,  # 0: none
    }


def inspection(task: str, **more: Any) -> Config:
    """Returns the defaults of a task that inspects a run directory: `evaluate`, `predict`, `visualize`, …"""
    chosen = {**data(), "source": ""}  # empty: the run's data
    common = {"task": task, "seed": 0, "workdir": "", "run": "", "batch_size": 64, "data": chosen, "mesh": "data=-1"}
    return ConfigDict({**common, **more})


def classifier_inspection(task: str, **more: Any) -> Config:
    """Returns the defaults of a task that inspects a classifier: `evaluate`, `predict`, `prune`, `benchmark`.

    The classifier is a run directory or a file of `save_model` (`run`), or a published file (`model.weights` of the
    network `model.name`; `model.class_names` is a text file with one name per line). Images are prepared as its card
    says, or as in timm for that name: `data` only sets the source of the images and the number of views of a video. An
    `img_size` other than 0 replaces the network's: its positions are resampled.
    """
    published = {"name": "", "weights": "", "class_names": ""}
    frames = {"frame_stride": -1}  # replaces the network's stride for clips; 0: spread over the video
    return inspection(task, **{"model": published, "img_size": 0, **frames, **more})


def featuring(task: str, **more: Any) -> Config:
    """Returns the defaults of a task that reads a network's features or predictions, with or without a classifier.

    As for `classifier_inspection`, except that a published file has no class names.
    """
    return inspection(task, **{"model": {"name": "", "weights": ""}, "img_size": 0, **more})


def shrink(config: Config) -> None:
    """Shrinks the settings common to all training configs to seconds on a CPU, on built-in data."""
    config.data.update(source="scenes", path="", name="", img_size=32, num_train=32, num_eval=12, num_threads=1)
    config.update(batch_size=8, epochs=1.0, log_every=2, checkpoint_every=2, max_minutes=0.0, dtype="float32")
    config.mesh = "data=-1"
    config.optimizer.warmup_epochs = 0.5
