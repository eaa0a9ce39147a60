"""The fine-tuning recipe of "Which Tokens to Use?", and the best settings that its supplement found (Tables 1 to 5).

A method that is not in its tables, such as one of your own, has the settings of Top-K.
"""

from typing import Any

from jaxprune import reduction
from jaxprune.commands import finetune
from jaxprune.errors import unknown

# (warm-up epochs, backbone scale, freeze epochs) for keep rates .25, .5, .7, .9; supplement Table 3.
SLOW, LONG, WHOLE, LONG_WHOLE = (5, 0.01, 5), (20, 0.01, 5), (5, 1.0, 0), (20, 1.0, 0)
RADIAL = (WHOLE, SLOW, SLOW, SLOW)
RANKED = (WHOLE, SLOW, SLOW, LONG_WHOLE)
SETTINGS = {
    "l1": RADIAL,
    "l2": RADIAL,
    "linf": RADIAL,
    "random": RADIAL,  # not in the paper; as for the other patterns that do not depend on the image
    "topk": RANKED,
    "evit": RANKED,
    "dynamicvit": (LONG, SLOW, LONG, LONG),
    "ats": (WHOLE, SLOW, LONG, SLOW),
    "tome": (SLOW, SLOW, SLOW, SLOW),
    "kmedoids": (WHOLE, SLOW, LONG, LONG_WHOLE),
    "dpc_knn": (SLOW, LONG, SLOW, SLOW),
    "sit": (SLOW, SLOW, SLOW, LONG),
    "patch_merger": (SLOW, SLOW, SLOW, SLOW),
    "sinkhorn": (WHOLE, WHOLE, WHOLE, WHOLE),
}
RATES = (0.25, 0.5, 0.7, 0.9)

# Arguments of all its configs, with their defaults; `path` is that of the data.
ARGUMENTS = {"method": "topk", "keep_rate": 0.5, "model": "deit_small_patch16_224", "path": ""}

# The settings of the dense DeiT-S on other data: learning rate, batch size for which it is given, warm-up epochs,
# backbone scale, freeze epochs; supplement Table 4.
BASELINES = {
    "nabirds": (1e-3, 1024, 5, 0.1, 5),
    "coco": (1e-4, 512, 5, 1.0, 0),
    "nus_wide": (1e-4, 512, 5, 1.0, 0),
}

# The keep rates at which a method uses the settings found on ImageNet; at all others it uses those of the dense
# baseline. Supplement Table 5; where a row of the table ends early, its last cell is repeated.
_LOWEST = dict.fromkeys(("l1", "l2", "linf", "ats"), (0.25,))
FROM_IMAGENET = {
    "nabirds": {**_LOWEST, "dynamicvit": (0.25,), "sit": (0.5, 0.7, 0.9), "sinkhorn": RATES},
    "coco": {"dynamicvit": (0.25, 0.5), "sit": RATES, "sinkhorn": RATES},
    "nus_wide": {"dynamicvit": (0.25,), "sit": RATES, "sinkhorn": RATES},
}


def recipe(args, settings: dict[str, float], *, augment: dict[str, float], data: dict[str, Any], **common: Any):
    """Returns the fine-tuning of a DeiT under a plan: what the data sets have in common.

    Args:
      args: the arguments ARGUMENTS, as `parse_arg` read them.
      settings: of the optimizer, for the method and the data.
      augment: the random changes that the data set's runs make to their batches.
      data: what `config.data` says of the images.
      common: epochs, batch size, loss and decay of the averaged parameters.
    """
    return finetune.recipe(
        **{"loss": "cross_entropy", "ema_decay": 0.9999, **common},
        dtype="float32",
        checkpoint_every=1000,
        reduction={"method": args.method, "keep_rate": args.keep_rate, "reduction_loc": (3, 6, 9)},
        distill={"logits": 0.5, "tokens": 0.5, "tokens_kind": "mse"},  # with a teacher, for DynamicViT
        model={
            "name": args.model,
            "global_pool": "token",
            "drop_path_rate": 0.1,
            "head_init_scale": 1.0,
        },
        optimizer={
            "name": "adamw",
            **settings,
            "b1": 0.9,
            "b2": 0.999,
            "weight_decay": 0.05,
            "clip_norm": 0.0,
            "warmup_lr": 1e-6,
            "min_lr": 1e-5,
            "cosine_from_start": True,
            "milestones": (),
            "layer_decay": 1.0,
        },
        augment=augment,
        data={
            "path": args.path,
            "img_size": 224,
            "crop": "random_resized",
            "crop_scale": (0.2, 1.0),
            "eval_crop": "center",
            "crop_pct": 0.875,
            "interpolation": "bicubic",
            "randaugment": "",
            "cutout": 0.0,
            "repeats": 3,
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
            **data,
        },
    )


def of_imagenet(args, source: str = "tfds"):
    """Returns the fine-tuning on ImageNet, with the settings that the paper found for the method.

    Args:
      args: the arguments ARGUMENTS.
      source: of the images.
    """
    return recipe(
        args,
        on_imagenet(args.method, args.keep_rate),
        epochs=30.0,
        batch_size=1024,
        augment={"flip": True, "erasing": 0.25, "mixup": 0.8, "cutmix": 1.0, "label_smoothing": 0.1},
        data={
            "source": source,
            "name": "imagenet2012",
            "eval_split": "validation",
            "crop_scale": (0.08, 1.0),
            "randaugment": "rand-m9-mstd0.5-inc1",
        },
    )


# Without random changes to batches.
NO_AUGMENT = {"erasing": 0.0, "mixup": 0.0, "cutmix": 0.0, "label_smoothing": 0.0}


def of_several_classes(args, data: str, **images: Any):
    """Returns the fine-tuning on images of several classes, read by TFDS: asymmetric loss, squeezed images, Cutout.

    Args:
      args: the arguments ARGUMENTS and `smoke`.
      data: of `BASELINES`.
      images: what `config.data` says of them.
    """
    prepared = {"crop": "none", "eval_crop": "none", "cutout": 0.5, "randaugment": "rand-m9-mstd0.5-inc1"}
    config = recipe(
        args,
        on(data, args.method, args.keep_rate),
        epochs=40.0,
        batch_size=512,
        ema_decay=0.9997,
        loss="asymmetric",
        augment={"flip": False, **NO_AUGMENT},
        data={"source": "tfds", **prepared, **images},
    )
    if args.smoke:
        config = finetune.smoke(config)
        config.loss = "cross_entropy"  # the built-in scenes have one class each
    return config


def on_imagenet(method: str, keep_rate: float) -> dict[str, float]:
    """Returns the optimizer settings for a method on ImageNet, or without one, at the nearest published keep rate."""
    if method and method not in reduction.methods():
        raise unknown("method", method, reduction.methods())
    warmup, scale, freeze = SETTINGS.get(method, SETTINGS["topk"])[RATES.index(nearest(keep_rate))]
    settings = {"base_lr": 1e-3, "lr_norm": 1024, "warmup_epochs": float(warmup)}
    return {**settings, "backbone_scale": scale, "freeze_epochs": float(freeze)}


def baseline(data: str) -> dict[str, float]:
    """Returns the optimizer settings for the dense DeiT-S on other data."""
    base_lr, lr_norm, warmup, scale, freeze = BASELINES[data]
    settings = {"base_lr": base_lr, "lr_norm": lr_norm, "warmup_epochs": float(warmup)}
    return {**settings, "backbone_scale": scale, "freeze_epochs": float(freeze)}


def on(data: str, method: str, keep_rate: float) -> dict[str, float]:
    """Returns the optimizer settings for a method on other data."""
    if nearest(keep_rate) in FROM_IMAGENET[data].get(method, ()):
        return on_imagenet(method, keep_rate)
    return baseline(data)


def nearest(keep_rate: float) -> float:
    """Returns the nearest published keep rate."""
    return min(RATES, key=lambda rate: abs(rate - keep_rate))
