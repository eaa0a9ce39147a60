"""Dynamic Perceiver on ImageNet, from scratch: ResNet-50 of 0.375 times the width, 128 latents (Han et al., 2023).

python -m jaxprune.main --config=configs/dynamic/dyn_perceiver.py

    form    resnet (72.93, 77.52, 74.32 and 77.70 % at the four exits) or convnext, which is not published
    path    of the TFDS data

Vectors do not decay.
"""

from jaxprune.commands import finetune
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, form="resnet", path="")
    config = finetune.recipe(
        batch_size=1024,
        epochs=300.0,
        dtype="float32",
        checkpoint_every=1000,
        loss="cross_entropy",
        ema_decay=0.9999,
        model={
            "name": "dyn_perceiver",
            "form": args.form,
            "bottleneck": True,
            "layers": (3, 4, 6, 3),
            "width": 24,
            "num_latents": 128,
            "num_heads": (1, 2, 4, 8),
            "depth_factor": (1, 1, 1, 1),
            "widening": 4,
            "transfer": True,
            "drop_rate": 0.2,
            "drop_path_rate": 0.2,
        },
        optimizer={
            "name": "adamw",
            "base_lr": 6e-4,
            "b1": 0.9,
            "b2": 0.999,
            "weight_decay": 0.05,
            "lr_norm": 1024,
            "warmup_epochs": 20.0,
            "warmup_lr": 1e-6,
            "min_lr": 1e-6,
            "clip_norm": 0.0,
            "cosine_from_start": False,
            "milestones": (),
            "layer_decay": 1.0,
            "backbone_scale": 1.0,
            "freeze_epochs": 0.0,
        },
        augment={
            "flip": True,
            "erasing": 0.25,
            "mixup": 0.8,
            "cutmix": 1.0,
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
            "crop_pct": 0.9,
            "interpolation": "bicubic",
            "randaugment": "rand-m9-mstd0.5-inc1",
            "cutout": 0.0,
            "repeats": 1,
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
        },
    )
    return finetune.smoke(config) if args.smoke else config
