"""Settings that the configs of several tasks share, each with its default; what `:smoke` makes of them."""

from typing import Any

from ml_collections import ConfigDict

from jaxprune.config import Config

# What a network may compute in; its weights are float32.
DTYPES = ("float32", "bfloat16", "float16")
# The network that scorers of patches read as their ConvNet unless their text names another.
PROPOSAL = "efficientnet_lite0"
# The network of a smoke run, and one with stages.
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
        "path": "",  # of the image folder, or of a prepared TFDS directory
        "name": "",  # a TFDS name
        "label_key": "label",  # of a TFDS set; "objects.label" for images of several classes
        "labels": True,  # False: pre-train on images without classes
        "train_split": "train",
        "eval_split": "test",
        "held_out": 0.2,  # share of each class that a folder without splits holds out; 0: none
        "held_out_seed": 0,  # which ones these are; one for all the runs that are compared
        "img_size": 224,
        "num_train": 10_000,  # of the built-in scenes
        "num_eval": 1_000,
        "crop": "random_resized",  # or "random_clipped", as MAE's linear probe; "center" or "none"
        "eval_crop": "center",  # or "none": the whole image, squeezed
        "crop_pct": 0.875,  # share of the shorter side that the centre crop covers
        "interpolation": "bicubic",  # of resizing, in training too
        "exif": True,  # photographs are turned upright as their EXIF tags say
        "crop_scale": (0.2, 1.0),
        "randaugment": "",  # a policy, such as "rand-m9-mstd0.5-inc1"
        "cutout": 0.0,  # side of a square that is painted over before that, as a part of the image's; 0: none
        "repeats": 1,  # repeated augmentation: so many crops of each example in a row
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "num_frames": 0,  # of a clip; 0: images. A network that is inspected knows its own
        "frame_stride": 4,  # frames of a video from one of a clip to the next; 0: spread over the video. Likewise
        "num_clips": 1,  # evenly spaced clips of a video, over which a classifier's probabilities are averaged
        "num_crops": 1,  # crops of each clip along its longer side, likewise
        "num_threads": 8,
    }


def training(task: str) -> dict[str, Any]:
    """Returns the defaults that every training task has."""
    return {
        "task": task,
        "seed": 0,
        "workdir": "",  # empty: runs/<name of the config file>
        "batch_size": 64,
        "epochs": 1.0,
        "max_minutes": 0.0,  # > 0: ends the phase early, in good order
        "accumulate": 1,  # parts that a batch is worked through in, for less memory
        "dtype": "float32",  # of the computation; "bfloat16" on accelerators
        "data": data(),
        "mesh": "data=-1",  # devices by axis: "fsdp=-1" spreads the parameters too; -1 takes what is left
        "log_every": 50,
        "checkpoint_every": 500,
        "keep": 3,  # checkpoints
        "eval_every": 0,  # 0: at the end only
    }


def schedule(*, base_lr: float, warmup_epochs: float, min_lr: float = 0.0) -> dict[str, Any]:
    """Returns what every `config.optimizer` says of the learning rate."""
    return {
        "base_lr": base_lr,  # of a batch as large as lr_norm
        "lr_norm": 256,
        "warmup_epochs": warmup_epochs,
        "warmup_lr": 0.0,
        "min_lr": min_lr,
        "cosine_from_start": False,  # True: the cosine counts the warm-up (DeiT)
        "milestones": (),  # epochs at which the rate falls to a tenth, in place of the cosine (SimMIM)
    }


def adamw(*, b2: float, weight_decay: float, **rate: float) -> dict[str, Any]:
    """Returns `config.optimizer` of a task that trains with AdamW; `rate` is what `schedule` takes."""
    return {
        **schedule(**rate),
        "b1": 0.9,
        "b2": b2,
        "weight_decay": weight_decay,
        "clip_norm": 0.0,  # 0: none
    }


def inspection(task: str, **more: Any) -> Config:
    """Returns the defaults of a task that examines a run directory: `evaluate`, `predict`, `visualize`, …"""
    chosen = {**data(), "source": ""}  # empty: the data of that run
    common = {"task": task, "seed": 0, "workdir": "", "run": "", "batch_size": 64, "data": chosen, "mesh": "data=-1"}
    return ConfigDict({**common, **more})


def classifier_inspection(task: str, **more: Any) -> Config:
    """Returns the defaults of a task that examines a classifier: `evaluate`, `predict`, `prune`, `benchmark`.

    The classifier is a run directory or a file of `save_model` (`run`), or a published file (`model.weights` of the
    network `model.name`; `model.class_names` is a text file with a name a line). Images are prepared as its card says,
    or as timm prepares them for that name: of `data` only where they come from is read, and how many views of a
    video. An `img_size` other than 0 takes the place of the network's: its positions are resampled.
    """
    published = {"name": "", "weights": "", "class_names": ""}
    frames = {"frame_stride": -1}  # of clips, in place of the network's; 0: spread over the video
    return inspection(task, **{"model": published, "img_size": 0, **frames, **more})


def featuring(task: str, **more: Any) -> Config:
    """Returns the defaults of a task that reads what a network makes of images, with or without a classifier.

    As for `classifier_inspection`, but that a published file has no names of classes.
    """
    return inspection(task, **{"model": {"name": "", "weights": ""}, "img_size": 0, **more})


def shrink(config: Config) -> None:
    """Shrinks what all training configs share to seconds on a CPU, on built-in data."""
    config.data.update(source="scenes", path="", name="", img_size=32, num_train=32, num_eval=12, num_threads=1)
    config.update(batch_size=8, epochs=1.0, log_every=2, checkpoint_every=2, max_minutes=0.0, dtype="float32")
    config.mesh = "data=-1"
    config.optimizer.warmup_epochs = 0.5
