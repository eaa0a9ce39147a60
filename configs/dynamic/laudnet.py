"""LAUDNet on ImageNet: a trained ResNet learns which blocks, places or channels an image needs (Han et al., 2023).

python -m jaxprune.main --config=configs/dynamic/laudnet.py --config.model.weights=resnet50.pth

    size    resnet50 or resnet101
    mode    layer, spatial (cells of 4, 4, 2 and 1 places) or channel (pairs of channels)
    target  share of the static network's cost
    path    of the TFDS data

`config.teacher` is a run directory of the static network, for the distillation (weight .5, temperature 4).
"""

from jaxprune.commands import finetune
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

LAYERS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}


def get_config(arg=None):
    args = parse_arg(arg, size="resnet50", mode="layer", target=0.5, path="")
    if args.size not in LAYERS:
        raise unknown("size", args.size, LAYERS)
    config = finetune.recipe(
        batch_size=1024,
        epochs=100.0,
        dtype="float32",
        checkpoint_every=1000,
        loss="cross_entropy",
        ema_decay=0.0,
        model={
            "name": "laudnet",
            "layers": LAYERS[args.size],
            "modes": (args.mode,) * 4,
            "granularity": (4, 4, 2, 1),
            "channel_granularity": (2, 2, 2, 2),
            "maskers": ("mlp",) * 4,
            "masker_layers": (2,) * 4,
            "reduction": (16,) * 4,
            "target_rate": args.target,
            "rate_weight": 10.0,
            "temperatures": (5.0, 0.1),
        },
        optimizer={
            "name": "sgd",
            "base_lr": 0.02,
            "b1": 0.9,
            "b2": 0.999,
            "momentum": 0.9,
            "weight_decay": 5e-5,
            "lr_norm": 256,
            "warmup_epochs": 0.0,
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
            "label_smoothing": 0.0,
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
        distill={"logits": 0.5, "tokens": 0.0, "tokens_kind": "mse"},
    )
    return finetune.smoke(config) if args.smoke else config
