"""CrossMAE on ImageNet-1k (Fu et al., 2024): a decoder of cross-attention; and PR-MIM on what it skips.

python -m jaxprune.main --config=configs/mim/crossmae.py:size=base,kept=.25

    method  crossmae (default), or prmim, which rebuilds the skipped patches from decoded ones
    size    small, base (default), large or huge
    kept    share of the patches that are masked and decoded: .25 (default), or .75 for all masked ones
    epochs  800 as published

Published top-1 after fine-tuning with configs/mim/imagenet_finetune.py: ViT-S 79.3, B 83.7 and L 85.4 with kept=.75, H
86.3 with kept=.25. Forward FLOPs of ViT-B relative to MAE: 0.99 with kept=.75, 0.66 with .25, 0.67 with PR-MIM on it.

As published, the learning rate is multiplied by kept / mask_ratio. With method=prmim it is not, since the loss is over
all masked patches, and the decoded ones are spread by furthest sampling; nobody has published this combination.

Needs the TFDS data set `imagenet2012` prepared as ArrayRecord, or --config.data.source=folder and --config.data.path.
"""

from jaxprune.commands import pretrain
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

MASK_RATIO = 0.75
# encoder; width and heads of the decoder
SIZES = {
    "small": ("vit_small_patch16_224", 256, 8),
    "base": ("vit_base_patch16_224", 512, 16),
    "large": ("vit_large_patch16_224", 512, 16),
    "huge": ("vit_huge_patch14_224", 512, 16),
}
# choice of the decoded patches
METHODS = {"crossmae": "random", "prmim": "furthest"}


def get_config(arg=None):
    args = parse_arg(arg, method="crossmae", size="base", kept=0.25, epochs=800)
    if args.method not in METHODS:
        raise unknown("method", args.method, METHODS)
    if args.size not in SIZES:
        raise unknown("size", args.size, SIZES)
    encoder, decoder_embed_dim, decoder_num_heads = SIZES[args.size]
    partial = "partial" if args.kept < MASK_RATIO else "full"
    config = pretrain.recipe(
        batch_size=4096,
        epochs=float(args.epochs),
        dtype="bfloat16",
        checkpoint_every=1000,
        flip=True,
        mim={
            "name": "crossmae",
            "encoder": encoder,
            "decoder_embed_dim": decoder_embed_dim,
            "decoder_depth": 12,
            "decoder_num_heads": decoder_num_heads,
            "mask_ratio": MASK_RATIO,
            "kept_mask_ratio": args.kept,
            "norm_pix_loss": True,
            "weight_fm": True,  # every block of the decoder weighs the encoder's feature maps
            "use_input": True,  # the input of the first block is one of them
            "self_attn": False,
            "reconstruction": "progressive" if args.method == "prmim" else partial,
            "retain": METHODS[args.method],
            "kernel_size": 7,
            "aggregation": "thrown",
            "remat": False,
        },
        optimizer={
            "name": "adamw",
            "base_lr": 1.5e-4 * (args.kept / MASK_RATIO if args.method == "crossmae" else 1.0),
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
