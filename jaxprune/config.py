"""What config files are made of: defaults of each task, `:argument` parsing, and the `:smoke` shrink."""

from collections.abc import Container
from typing import Any

from ml_collections import ConfigDict

from jaxprune.errors import UserError, unknown
from jaxprune.text import split_items

# An ml_collections.ConfigDict; what its keys hold is not known to a type checker.
Config = Any


def parse_arg(arg: str | None, **defaults: Any) -> Config:
    """Reads what follows the colon of `--config=file.py:size=large,epochs=300`.

    Args:
      arg: comma-separated `name=value`; a bare name sets a flag. `smoke` is always known.
      defaults: the names that are understood, with the value each has if it is not given; a value takes the type of
        its default.

    Raises:
      UserError: a name is not understood, or a value does not have its default's type.
    """
    values: dict[str, Any] = {"smoke": False, **defaults}
    for name, text in split_items(arg or ""):
        if name not in values:
            raise renamed("argument", name, values) or unknown("config argument", name, values)
        values[name] = _typed(name, "true" if text is None else text, values[name])
    return ConfigDict(values)


# What `init` meant in version 0.1, by what a config is for.
_INIT = ("run", "model.weights", "weights", "label_model")


def renamed(what: str, name: str, known: Container[str]) -> UserError | None:
    """Returns the error for a key of version 0.1 that has another name now, or None if it is none."""
    new = [key for key in _INIT if key in known]
    if name != "init" or not new:
        return None
    return UserError(f"The {what} init is called {' or '.join(new)} now: write that.")


def _typed(name: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        if text.lower() in ("true", "1", "yes"):
            return True
        if text.lower() in ("false", "0", "no"):
            return False
        raise UserError(f"Config argument {name}={text} is neither true nor false.")
    try:
        return type(default)(text)
    except ValueError as error:
        raise UserError(f"Config argument {name}={text} is not of the type {type(default).__name__}.") from error


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
        "img_size": 224,
        "num_train": 10_000,  # of the built-in scenes
        "num_eval": 1_000,
        "crop": "random_resized",
        "eval_crop": "center",  # or "none": the whole image, squeezed
        "crop_pct": 0.875,  # share of the shorter side that the centre crop covers
        "interpolation": "bicubic",  # of resizing, in training too
        "exif": True,  # photographs are turned upright as their EXIF tags say
        "crop_scale": (0.2, 1.0),
        "randaugment": "",  # a policy, such as "rand-m9-mstd0.5-inc1"
        "repeats": 1,  # repeated augmentation: so many crops of each example in a row
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "num_threads": 8,
    }


def _common() -> dict[str, Any]:
    return {
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
        "keep": 3,
        "eval_every": 0,  # 0: at the end only
    }


# MAE's, for every size of the encoder.
_DECODER = {"decoder_embed_dim": 512, "decoder_depth": 8, "decoder_num_heads": 16}


def _mae() -> dict[str, Any]:
    """Returns PR-MIM on MAE, as `config.mim` has it."""
    return {
        "name": "mae",
        "encoder": "vit_base_patch16_224",
        **_DECODER,
        "mask_ratio": 0.75,
        "norm_pix_loss": True,
        "reconstruction": "progressive",
        "throw_ratio": 0.5,
        "retain": "furthest",
        "kernel_size": 7,
        "aggregation": "thrown",
        "remat": False,
    }


def pretrain(mim: dict[str, Any] | None = None) -> Config:
    """Returns the defaults of the task `pretrain`: the recipe of PR-MIM Tab. 13.

    Args:
      mim: `config.mim`, the name and the arguments of a framework; by default PR-MIM on MAE.
    """
    return ConfigDict(
        {
            **_common(),
            "task": "pretrain",
            "mim": _mae() if mim is None else dict(mim),
            "optimizer": {
                "base_lr": 1.5e-4,  # times batch_size / 256
                "b1": 0.9,
                "b2": 0.95,
                "weight_decay": 0.05,
                "clip_norm": 0.0,  # 0: none
                "warmup_epochs": 40.0,
                "min_lr": 0.0,
            },
            "flip": True,
            "picture_every": 500,
        }
    )


def finetune() -> Config:
    """Returns the defaults of the task `finetune`: MAE's recipe, PR-MIM Tab. 14, with `data.randaugment` to set."""
    return ConfigDict(
        {
            **_common(),
            "task": "finetune",
            "run": "",  # a run directory to start from; a published file is model.weights; without both, from scratch
            "trainable_blocks": -1,  # the last so many train, with norm and head; -1: all, and what is before them
            "loss": "cross_entropy",  # or "asymmetric", for images of several classes
            "ema_decay": 0.0,  # of averaged parameters, evaluated beside the last ones; 0: none
            "reduction": {"method": "", "keep_rate": 0.7, "reduction_loc": (3, 6, 9)},  # and the method's options
            "scorer": "",  # of the method from_scores: "ltrp:run=RUN", "papr", … as in configs/score.py
            # The keep rate falls from 1 by the epoch, from `start` on; 0 epochs: it is the plan's at once (EViT).
            "keep_rate_warmup": {"start": 0, "epochs": 0},
            "teacher": "",  # the run directory of a dense classifier to distil from
            # What the loss adds to cross-entropy: DynamicViT's ratio, and from a teacher its logits and tokens.
            "distill": {"ratio": 2.0, "logits": 0.5, "tokens": 0.5, "tokens_kind": "mse"},
            "model": {
                "name": "vit_base_patch16_224",
                "weights": "",  # a published file to start from
                "global_pool": "avg",
                "drop_path_rate": 0.1,
                "head_init_scale": 1e-3,
                "remat": False,
            },
            "optimizer": {
                "base_lr": 5e-4,
                "lr_norm": 256,  # base_lr is of a batch this large
                "b1": 0.9,
                "b2": 0.999,
                "weight_decay": 0.05,
                "clip_norm": 0.0,
                "warmup_epochs": 5.0,
                "warmup_lr": 0.0,
                "min_lr": 1e-6,
                "cosine_from_start": False,  # True: the cosine counts the warm-up (DeiT)
                "layer_decay": 0.65,
                "backbone_scale": 1.0,  # of the learning rate of what came with the weights
                "freeze_epochs": 0.0,  # before that trains at all
            },
            "augment": {
                "flip": True,
                "erasing": 0.25,
                "cutout": 0.0,
                "mixup": 0.8,
                "cutmix": 1.0,
                "label_smoothing": 0.1,
            },
        }
    )


def linear_probe() -> Config:
    """Returns the defaults of the task `linear_probe`: MAE's protocol, with LARS and no decay."""
    return ConfigDict(
        {
            **_common(),
            "task": "linear_probe",
            "run": "",  # a run directory to probe; a published file is model.weights
            "model": {"name": "vit_base_patch16_224", "weights": "", "global_pool": "token"},
            "flip": True,
            "optimizer": {"base_lr": 0.1, "momentum": 0.9, "warmup_epochs": 10.0, "min_lr": 0.0},
        }
    )


def inspect_run(task: str, **more: Any) -> Config:
    """Returns the defaults of a task that examines a run directory: `evaluate`, `predict`, `visualize`."""
    chosen = {**data(), "source": ""}  # empty: the data of that run
    common = {"task": task, "seed": 0, "workdir": "", "run": "", "batch_size": 64, "data": chosen, "mesh": "data=-1"}
    return ConfigDict({**common, **more})


def inspect_classifier(task: str, **more: Any) -> Config:
    """Returns the defaults of a task that examines a classifier: `evaluate`, `predict`, `prune`, `benchmark`.

    The classifier is a run directory or a file of `save_model` (`run`), or a published file (`model.weights` of the
    network `model.name`; `model.class_names` is a text file with a name a line). Images are prepared as its card says,
    or as timm prepares them for that name; of `data` only where they come from is read.
    """
    published = {"name": "", "weights": "", "class_names": ""}
    # An img_size other than 0: positions are resampled to it.
    return inspect_run(task, **{"model": published, "img_size": 0, **more})


def train_ranker() -> Config:
    """Returns the defaults of the task `train_ranker`: LTRP Tab. 3, what it does not list from MAE's recipe."""
    return ConfigDict(
        {
            **_common(),
            "task": "train_ranker",
            # The masked autoencoder that makes the labels: a run directory, or a weights file of the network `mim`.
            # Empty: one that is pre-trained first, by the config in `pretrain`.
            "label_model": "",
            "mim": {"name": "mae", "encoder": "vit_base_patch16_224", **_DECODER, "norm_pix_loss": False},
            "expects": "full",  # how it learnt to reconstruct; another than this is warned about
            "ranker": {"name": "vit_small_patch16_224", "remat": False},
            "warm_start": False,  # the ranker begins as the autoencoder's encoder, which has to be of its sizes
            "sparse": True,  # the ranker is trained on the visible patches only
            "labels": {
                "mask_ratio": 0.9,
                "throw_ratio": 0.0,  # share of the patches that no reconstruction has: cheaper, and no longer exact
                "removal": "delete",
                "over": "masked",
                "memory_mib": 2048.0,  # that making them may take on a device
            },
            "loss": "list_mle",
            "loss_options": {},
            "optimizer": {
                "base_lr": 1.5e-4,  # times batch_size / 256
                "b1": 0.9,
                "b2": 0.95,
                "weight_decay": 0.06,
                "clip_norm": 0.0,
                "warmup_epochs": 40.0,
                "min_lr": 0.0,
            },
            "flip": True,
        }
    )


def shrink(config: Config) -> Config:
    """Shrinks any training config to run in seconds on a CPU, on built-in data: what `:smoke` means everywhere."""
    for phase in [config, *(v for v in config.values() if isinstance(v, ConfigDict) and "task" in v)]:
        if "data" not in phase:
            continue
        phase.data.update(source="scenes", path="", name="", img_size=32, num_train=32, num_eval=12, num_threads=1)
        phase.update(batch_size=8, epochs=1.0, log_every=2, checkpoint_every=2, max_minutes=0.0, dtype="float32")
        phase.mesh = "data=-1"
        phase.optimizer.warmup_epochs = 0.5
        tiny = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
        if "mim" in phase:
            decoder = {"decoder_embed_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2}
            # A framework has these, or a decoder of another kind.
            decoder = {name: size for name, size in decoder.items() if name in phase.mim}
            phase.mim = {**phase.mim.to_dict(), **tiny, **decoder, "encoder": ""}
            phase.picture_every = 2
        if "ranker" in phase:
            phase.ranker = {**phase.ranker.to_dict(), **tiny, "name": "vit"}
            phase.labels.mask_ratio = 0.5
        if "reduction" in phase:
            phase.reduction.reduction_loc = (1,)
        if "model" in phase:
            phase.model = {**phase.model.to_dict(), **tiny, "name": "vit"}
    return config


# Networks that learn something on two CPU cores: the encoder, the decoder, and a rate for the augmentation's crops.
_SMALL = {
    "cifar10": (
        {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 4, "num_heads": 3},
        {"decoder_embed_dim": 64, "decoder_depth": 2, "decoder_num_heads": 4},
        {"epochs": 20.0, "finetune_epochs": 10.0, "crop_scale": (0.6, 1.0)},
    ),
    "caltech101": (
        {"img_size": 64, "patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 3},
        {"decoder_embed_dim": 96, "decoder_depth": 2, "decoder_num_heads": 4},
        {"epochs": 60.0, "finetune_epochs": 20.0, "crop_scale": (0.35, 1.0)},
    ),
}


def small(data: str) -> dict[str, Any]:
    """Returns the sizes of the encoder that configs train on "cifar10" or "caltech101"."""
    if data not in _SMALL:
        raise unknown("data", data, _SMALL)
    return dict(_SMALL[data][0])


REPRODUCTION = {
    "data": "cifar10",
    "source": "folder",
    "path": "",
    "seed": 0,
    "epochs": 0.0,  # 0: what the data are worth
    "finetune_epochs": 0.0,
}


def reproduction(args: Config, **mim: Any) -> Config:
    """Returns one row of a pre-training table on small data: pre-training, fine-tuning, training from scratch.

    Args:
      args: the arguments `REPRODUCTION` and `smoke`, as `parse_arg` read them.
      mim: what the row changes of the framework.

    Raises:
      UserError: the data are unknown.
    """
    if args.data not in _SMALL:
        raise unknown("data", args.data, _SMALL)
    encoder, decoder, recipe = _SMALL[args.data]
    first = pretrain()
    first.mim = {**first.mim.to_dict(), **encoder, **decoder, "encoder": "", "aggregator": "depthwise", **mim}
    first.epochs = args.epochs or recipe["epochs"]
    first.optimizer.update(base_lr=3e-3, warmup_epochs=0.1 * first.epochs)
    second = finetune()
    second.model = {**second.model.to_dict(), **encoder, "name": "vit", "drop_path_rate": 0.0}
    second.epochs = args.finetune_epochs or recipe["finetune_epochs"]
    second.optimizer.update(base_lr=3e-3, warmup_epochs=0.1 * second.epochs, layer_decay=0.8)
    second.augment.update(erasing=0.0, mixup=0.0, cutmix=0.0)
    # A prepared Caltech-101 is one split.
    one_split = args.data == "caltech101" and args.source == "tfds"
    splits = {"train_split": "train[:67%]", "eval_split": "train[67%:]"} if one_split else {}
    for phase in (first, second):
        phase.data.update(source=args.source, path=args.path, img_size=encoder["img_size"], **splits)
        phase.data.crop_scale = recipe["crop_scale"]
        phase.update(batch_size=128, log_every=50, checkpoint_every=500)
    config = ConfigDict({"task": "quickstart", "seed": args.seed, "workdir": "", "pretrain": first, "finetune": second})
    return shrink(config) if args.smoke else config


# What a ranker, its autoencoder and a classifier on selected patches have in common, by data.
RANKED = {
    "scenes": {"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 4, "num_heads": 3},
    "cifar10": {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 4, "num_heads": 3},
    "caltech101": {"img_size": 112, "patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 3},
}

RANKING = {
    "source": "folder",
    "path": "",
    "seed": 0,
    "label_model": "",  # an autoencoder that is there already
    "epochs": 0.0,  # 0: what the data are worth
    "mae_epochs": 0.0,
    "mask_ratio": 0.0,
    "throw": 0.0,
    "loss": "list_mle",
    "top_k": 5,  # places of the order that it looks at; 0: all, as published
}


def ranking(
    args: Config,
    encoder: dict[str, Any],
    decoder: dict[str, Any],
    *,
    epochs: float,
    mae_epochs: float,
    mask_ratio: float,
    data: dict[str, Any],
) -> Config:
    """Returns a ranker on small data, with the autoencoder that makes its labels.

    Args:
      args: the arguments `RANKING` and `smoke`, as `parse_arg` read them; those above 0 overrule what follows.
      encoder: the sizes of both networks.
      decoder: those of the autoencoder's decoder.
      mask_ratio: of the labels; the autoencoder is trained with MAE's.
      data: what to change in `config.data` of both.
    """
    autoencoder = {
        "name": "mae",
        "mask_ratio": 0.75,
        "norm_pix_loss": False,
        "reconstruction": "full",
        "throw_ratio": 0.0,
        **encoder,
        **decoder,
    }
    first = pretrain(autoencoder)
    first.update(epochs=args.mae_epochs or mae_epochs)
    first.optimizer.update(base_lr=6e-3, warmup_epochs=0.05 * first.epochs)
    config = train_ranker()
    config.update(
        label_model=args.label_model, ranker={"name": "vit", **encoder}, epochs=args.epochs or epochs, seed=args.seed
    )
    config.optimizer.update(base_lr=4e-3, warmup_epochs=0.05 * config.epochs)
    # So little training is spent best on what matters most: the encoder has seen the images already, and how patches
    # stand at the end of the order, where they are redundant, is chance.
    config.update(warm_start=True, loss=args.loss, loss_options={"top_k": args.top_k} if args.top_k else {})
    config.labels.update(mask_ratio=args.mask_ratio or mask_ratio, throw_ratio=args.throw)
    for phase in (first, config):
        phase.data.update(source=args.source, path=args.path, img_size=encoder["img_size"], **data)
        phase.update(batch_size=64, log_every=20, checkpoint_every=400)
    config.pretrain, config.mim = first, first.mim
    return shrink(config) if args.smoke else config
