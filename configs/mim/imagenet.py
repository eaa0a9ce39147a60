"""MAE, plain partial reconstruction and PR-MIM on ImageNet-1k: PR-MIM Tab. 2, 3 and 13.

python -m jaxprune.main --config=configs/mim/imagenet.py:method=prmim,size=base,epochs=100

    method  mae, partial or prmim           throw   share of the patches thrown: .25, .5 (default), .65
    size    base or large                   epochs  100, 300 or 800

Published top-1 after fine-tuning with configs/mim/imagenet_finetune.py (Tab. 3): ViT-B 100/300/800 epochs MAE
81.7/82.7/83.3, partial .5 81.1/82.3/83.0, PR-MIM .5 81.8/82.7/83.3; ViT-L 100/800 epochs MAE 83.3/85.4, partial .5
82.4/–, PR-MIM .5 83.2/85.4. FLOPs of PR-MIM .5 relative to MAE: 0.72 for ViT-B, 0.87 for ViT-L.

Needs the TFDS data set `imagenet2012` prepared as ArrayRecord, or --config.data.source=folder and --config.data.path.
"""

from jaxprune.commands import pretrain
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

RECONSTRUCTION = {"mae": "full", "partial": "partial", "prmim": "progressive"}


def get_config(arg=None):
    args = parse_arg(arg, method="prmim", size="base", epochs=100, throw=0.5)
    if args.method not in RECONSTRUCTION:
        raise unknown("method", args.method, RECONSTRUCTION)
    if args.size not in ("base", "large"):
        raise unknown("size", args.size, ("base", "large"))
    config = pretrain.recipe(
        batch_size=4096,
        epochs=float(args.epochs),
        dtype="bfloat16",
        checkpoint_every=1000,
        flip=True,
        mim={
            "name": "mae",
            "encoder": f"vit_{args.size}_patch16_224",
            "decoder_embed_dim": 512,
            "decoder_depth": 8,
            "decoder_num_heads": 16,
            "mask_ratio": 0.75,
            "norm_pix_loss": True,
            "reconstruction": RECONSTRUCTION[args.method],
            "throw_ratio": 0.0 if args.method == "mae" else args.throw,
            "retain": "furthest",
            "kernel_size": 7,
            "aggregation": "thrown",
            "remat": False,
        },
        optimizer={
            "name": "adamw",
            "base_lr": 1.5e-4,  # Tab. 13, for lr_norm images: 2.4e-3 at this batch size
            "lr_norm": 256,
            "b1": 0.9,
            "b2": 0.95,
            "weight_decay": 0.05,
            "clip_norm": 0.0,
            "warmup_epochs": 40.0,
            "warmup_lr": 0.0,
            "min_lr": 0.0,
            "cosine_from_start": False,
            "milestones": (),
        },
        data={
            "source": "tfds",
            "name": "imagenet2012",
            "eval_split": "validation",
            "img_size": 224,
            "crop": "random_resized",
            "crop_scale": (0.2, 1.0),
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
    return pretrain.smoke(config) if args.smoke else config
