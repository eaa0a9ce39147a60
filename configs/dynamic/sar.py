"""SAR on ImageNet, from scratch: a ResNet-50 whose coarse branch decides what is refined (Han et al., 2021).

python -m jaxprune.main --config=configs/dynamic/sar.py

    size    resnet50 (2.90 to 1.86 GMAC) or resnet34 (2.38 to 1.29)
    target  share of the cells to refine
    path    of the TFDS data

The share of the published runs is not known; their abstract refines less than .4 of the cells. Vectors do not
decay here.
"""

from jaxprune.commands import finetune
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

BOTTLENECK = {"resnet50": True, "resnet34": False}


def get_config(arg=None):
    args = parse_arg(arg, size="resnet50", target=0.4, path="")
    if args.size not in BOTTLENECK:
        raise unknown("size", args.size, BOTTLENECK)
    config = finetune.recipe(
        batch_size=256,
        epochs=200.0,
        dtype="float32",
        checkpoint_every=1000,
        loss="cross_entropy",
        ema_decay=0.0,
        model={
            "name": "sar",
            "bottleneck": BOTTLENECK[args.size],
            "layers": (3, 4, 6, 3),
            "groups": 2,
            "mask_size": (7, 7, 2),
            "alpha": 2,
            "target_rate": args.target,
            "rate_weight": 10.0,
            "temperatures": (1.0, 0.01),
            "annealed": 0.8,
        },
        optimizer={
            "name": "sgd",
            "base_lr": 0.1,
            "b1": 0.9,
            "b2": 0.999,
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "lr_norm": 256,
            "warmup_epochs": 5.0,
            "warmup_lr": 0.0,
            "min_lr": 0.0,
            "clip_norm": 0.0,
            "cosine_from_start": False,
            "milestones": (),
            "layer_decay": 1.0,
            "backbone_scale": 1.0,
            "freeze_epochs": 0.0,
        },
        augment={
            "flip": True,
            "erasing": 0.0,
            "mixup": 0.0,
            "cutmix": 0.0,
            "label_smoothing": 0.1,
        },
        data={
            "source": "tfds",
            "name": "imagenet2012",
            "eval_split": "validation",
            "path": args.path,
            "img_size": 224,
            "crop": "random_resized",
            "crop_scale": (0.08, 1.0),
            "eval_crop": "center",
            "crop_pct": 0.875,
            "interpolation": "bilinear",
            "randaugment": "",
            "cutout": 0.0,
            "repeats": 1,
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
        },
    )
    return finetune.smoke(config) if args.smoke else config
