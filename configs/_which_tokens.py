"""The fine-tuning recipe of "Which Tokens to Use?", and the best settings that its supplement found (Tables 1 to 5).

A method that is not in its tables, such as one of your own, has the settings of Top-K.
"""

from ml_collections import ConfigDict

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


def recipe(args, settings: dict[str, float], *, epochs: float, batch_size: int, ema_decay: float = 0.9999):
    """Returns the fine-tuning of a DeiT under a plan: what the data sets have in common.

    Args:
      args: the arguments ARGUMENTS, as `parse_arg` read them.
      settings: of the optimizer, for the method and the data.
    """
    config = finetune.defaults()
    config.reduction = ConfigDict({"method": args.method, "keep_rate": args.keep_rate, "reduction_loc": (3, 6, 9)})
    config.update(epochs=epochs, batch_size=batch_size, ema_decay=ema_decay, checkpoint_every=1000)
    config.model.update(name=args.model, global_pool="token", drop_path_rate=0.1, head_init_scale=1.0)
    config.optimizer.update(
        **settings, weight_decay=0.05, warmup_lr=1e-6, min_lr=1e-5, cosine_from_start=True, layer_decay=1.0
    )
    config.data.update(path=args.path, repeats=3)
    return config


def of_several_classes(args, data: str, **images):
    """Returns the fine-tuning on images of several classes, read by TFDS: asymmetric loss, squeezed images, Cutout.

    Args:
      args: the arguments ARGUMENTS and `smoke`.
      data: of `BASELINES`.
      images: what `config.data` says of them.
    """
    config = recipe(args, on(data, args.method, args.keep_rate), epochs=40.0, batch_size=512, ema_decay=0.9997)
    config.loss = "asymmetric"
    config.augment.update(flip=False, erasing=0.0, mixup=0.0, cutmix=0.0, label_smoothing=0.0)
    config.data.update(source="tfds", crop="none", eval_crop="none", **images)
    config.data.update(cutout=0.5, randaugment="rand-m9-mstd0.5-inc1")
    if args.smoke:
        config = finetune.smoke(config)
        config.loss = "cross_entropy"  # the built-in scenes have one class each
    return config


def on_imagenet(method: str, keep_rate: float) -> dict[str, float]:
    """Returns the optimizer settings for a method on ImageNet, at the nearest published keep rate."""
    if method not in reduction.methods():
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
