"""Linear probing on ImageNet-1k after masked pre-training: MAE's protocol.

python -m jaxprune.main --config=configs/mim/linear_probe.py:size=base --config.run=runs/imagenet

    size    base (90 epochs) or large (50 epochs), with batches of 16384 as published
    data    imagenet, or cifar10 and caltech101 with path=DIR, for networks of configs/reproduce

`run` is a pre-training run; use `--config.model.weights` for a file of published MAE weights. The network with its
classifier is saved as `model.safetensors` in the run directory.
"""

from _small import NETWORKS

from jaxprune.commands import linear_probe
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

EPOCHS = {"base": 90.0, "large": 50.0}


def get_config(arg=None):
    args = parse_arg(arg, size="base", data="imagenet", source="folder", path="", run="", epochs=0.0, seed=0)
    if args.size not in EPOCHS:
        raise unknown("size", args.size, EPOCHS)
    if args.data == "imagenet":
        model = {"name": f"vit_{args.size}_patch16_224"}
        data = {"source": "tfds", "name": "imagenet2012", "eval_split": "validation"}
        img_size, crop_scale = 224, (0.08, 1.0)
        batch_size, epochs, dtype = 16384, args.epochs or EPOCHS[args.size], "bfloat16"
        base_lr, warmup_epochs = 0.1, 10.0
    elif args.data in NETWORKS:
        model = {"name": "vit", **NETWORKS[args.data]}
        data = {"source": args.source, "path": args.path}
        img_size, crop_scale = model["img_size"], (0.6, 1.0)
        batch_size, epochs, dtype = 256, args.epochs or 3.0, "float32"
        base_lr, warmup_epochs = 0.1 * 32, 0.1 * epochs
    else:
        raise unknown("data", args.data, ("imagenet", *NETWORKS))
    config = linear_probe.recipe(
        run=args.run,
        seed=args.seed,
        batch_size=batch_size,
        epochs=epochs,
        dtype=dtype,
        flip=True,
        model={**model, "global_pool": "token"},
        optimizer={
            "name": "lars",
            "base_lr": base_lr,
            "lr_norm": 256,
            "momentum": 0.9,
            "warmup_epochs": warmup_epochs,
            "warmup_lr": 0.0,
            "min_lr": 0.0,
            "cosine_from_start": False,
            "milestones": (),
        },
        data={
            **data,
            "img_size": img_size,
            "crop": "random_clipped",
            "crop_scale": crop_scale,
            "eval_crop": "center",
            "crop_pct": 0.875,
            "interpolation": "bicubic",
            "randaugment": "",
            "cutout": 0.0,
            "repeats": 1,
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
        },
    )
    return linear_probe.smoke(config) if args.smoke else config
