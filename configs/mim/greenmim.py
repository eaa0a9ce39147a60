"""GreenMIM with a Swin on ImageNet-1k, and PR-MIM on top of it: Huang et al. (2022), PR-MIM Sec. 4.

python -m jaxprune.main --config=configs/mim/greenmim.py:method=prmim,size=base,epochs=100

    method  greenmim, partial or prmim      throw   share of the cells thrown
    size    base (windows of 7) or large (windows of 14)
    epochs  100 (default); the published scripts have 200 for base and 800 for large too

A cell has 32×32 pixels: the encoder sees 12 of the 49 cells, and at throw .5 the decoder gets 25. A forward pass costs
4.03 and 8.83 G multiply-accumulates per image (base, large), with PR-MIM 0.98 and 0.99 of that, because the decoder is
only one block. Published top-1 after fine-tuning with configs/mim/imagenet_finetune.py:framework=greenmim, 100 epochs
(PR-MIM Tab. 5): Swin-B GreenMIM 83.2, partial .5 82.9, PR-MIM .5 83.3; Swin-L 83.8, 83.1, 83.9. GreenMIM's own
checkpoints reach 83.8 (83.7 at first) and 85.1. As in its scripts, the rate of a Swin-L is two thirds of a Swin-B's.
The published code mixes up the positions of visible cells before the decoder; `--config.mim.restore=published` does so.

Needs the TFDS data set `imagenet2012` prepared as ArrayRecord, or --config.data.source=folder and --config.data.path.
"""

from jaxprune.commands import pretrain
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

RECONSTRUCTION = {"greenmim": "full", "partial": "partial", "prmim": "progressive"}
WINDOWS = {"base": 7, "large": 14}
RATES = {"base": 1.5e-4, "large": 1e-4}


def get_config(arg=None):
    args = parse_arg(arg, method="prmim", size="base", epochs=100, throw=0.5)
    if args.method not in RECONSTRUCTION:
        raise unknown("method", args.method, RECONSTRUCTION)
    if args.size not in WINDOWS:
        raise unknown("size", args.size, WINDOWS)
    config = pretrain.recipe(
        batch_size=4096,
        epochs=float(args.epochs),
        dtype="bfloat16",
        checkpoint_every=1000,
        flip=True,
        mim={
            "name": "greenmim",
            "encoder": f"swin_{args.size}_patch4_window7_224",
            "window_size": WINDOWS[args.size],
            "decoder_embed_dim": 512,
            "decoder_depth": 1,
            "decoder_num_heads": 16,
            "mask_ratio": 0.75,
            "shared_mask": True,
            "restore": "exact",
            "norm_pix_loss": True,
            "reconstruction": RECONSTRUCTION[args.method],
            "throw_ratio": 0.0 if args.method == "greenmim" else args.throw,
            "retain": "furthest",
            "kernel_size": 7,
            "aggregation": "thrown",
            "remat": False,
        },
        optimizer={
            "name": "adamw",
            "base_lr": RATES[args.size],  # for lr_norm images: 2.4e-3 at this batch size for base
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
