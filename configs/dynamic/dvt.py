"""DVT on ImageNet, from scratch: T2T-ViT-12 or T2T-ViT-14 for 7×7, 10×10 and 14×14 tokens (Wang et al., 2021).

python -m jaxprune.main --config=configs/dynamic/dvt.py:size=t2t_12

    size    t2t_12 (70.33, 73.54 and 76.74 % without reuse; 69.04, 75.65 and 80.00 % with both, Tab. 6) or t2t_14
    path    of the TFDS data

The published runs go on for ten epochs at the least learning rate, which this one does not.
"""

from jaxprune.commands import finetune
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

# width, blocks, heads, MLP ratio; learning rate, batch size, weight decay
SIZES = {
    "t2t_12": ((256, 12, 4, 2.0), (2e-3, 1024, 0.03)),
    "t2t_14": ((384, 14, 6, 3.0), (5e-4, 512, 0.05)),
}


def get_config(arg=None):
    args = parse_arg(arg, size="t2t_12", path="")
    if args.size not in SIZES:
        raise unknown("size", args.size, SIZES)
    (width, depth, heads, ratio), (rate, batch_size, weight_decay) = SIZES[args.size]
    config = finetune.recipe(
        batch_size=batch_size,
        epochs=300.0,
        dtype="float32",
        checkpoint_every=1000,
        loss="cross_entropy",
        ema_decay=0.99996,
        model={
            "name": "dvt",
            "form": "t2t",
            "embed_dim": width,
            "depth": depth,
            "num_heads": heads,
            "mlp_ratio": ratio,
            "feature_reuse": True,
            "relation_reuse": True,
            "reuse_sizes": (128, 48),
            "token_dim": 64,
            "drop_path_rate": 0.1,
        },
        optimizer={
            "name": "adamw",
            "base_lr": rate,
            "b1": 0.9,
            "b2": 0.999,
            "weight_decay": weight_decay,
            "lr_norm": batch_size,
            "warmup_epochs": 20.0,
            "warmup_lr": 1e-6,
            "min_lr": 1e-5,
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
