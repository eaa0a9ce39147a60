"""Pixio's masked autoencoder (Yang et al., 2025): a deep decoder, 4×4 blocks of patches, 8 class tokens; with PR-MIM.

python -m jaxprune.main --config=configs/mim/pixio.py:method=prmim,size=base

    method  pixio, as published; partial, which decodes some of the masked patches; or prmim (default)
    throw   share of the patches thrown (.5)
    size    base, large or huge (default); published pre-training is of ViT-H and of a ViT of 5 billion parameters
    drop    stochastic depth of the last block; .4 (default) as published for ViT-H
    epochs  400 (default)

The decoder's 32 blocks run on all 256 patches, so throwing saves more than in MAE: with throw=.5 a forward pass has
0.59, 0.72 and 0.81 of the FLOPs for ViT-B, L and H. Whether accuracy holds has not been published.

Published: 400 epochs of 1605 steps, 13 million images each, as many as ImageNet-21k has; ImageNet-1k has a tenth. Two
points differ: images are not curated by their reconstruction loss and colours (published for two billion images of the
web), and features of the whole image are the first class token's (published: the mean of the 8). PR-MIM throws single
patches, not blocks.

Needs the TFDS data set `imagenet2012` prepared as ArrayRecord, or --config.data.source=folder and --config.data.path.
"""

from jaxprune.commands import pretrain
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

RECONSTRUCTION = {"pixio": "full", "partial": "partial", "prmim": "progressive"}
# The names of the networks say other sizes of patches and images, which are set below.
ENCODERS = {"base": "vit_base_patch16_224", "large": "vit_large_patch16_224", "huge": "vit_huge_patch14_224"}


def get_config(arg=None):
    args = parse_arg(arg, method="prmim", throw=0.5, size="huge", drop=0.4, epochs=400)
    if args.method not in RECONSTRUCTION:
        raise unknown("method", args.method, RECONSTRUCTION)
    if args.size not in ENCODERS:
        raise unknown("size", args.size, ENCODERS)
    config = pretrain.recipe(
        batch_size=8192,
        epochs=float(args.epochs),
        dtype="bfloat16",
        checkpoint_every=1000,
        flip=False,
        mim={
            "name": "mae",
            "encoder": ENCODERS[args.size],
            "img_size": 256,
            "patch_size": 16,
            "class_token": True,
            "reg_tokens": 7,  # with the CLS token 8 tokens, each with a position
            "pos_embed": "learn",
            "drop_path_rate": args.drop,
            "decoder_embed_dim": 512,
            "decoder_depth": 32,
            "decoder_num_heads": 16,
            "decoder_pos_embed": "learn",
            "mask_ratio": 0.75,
            "mask_patch": 64,  # pixels: 4×4 patches
            "norm_pix_loss": True,
            "reconstruction": RECONSTRUCTION[args.method],
            "throw_ratio": 0.0 if args.method == "pixio" else args.throw,
            "retain": "furthest",
            "kernel_size": 7,
            "aggregation": "thrown",
            "remat": False,
        },
        optimizer={
            "name": "adamw",
            "base_lr": 2.5e-5,
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
            "img_size": 256,
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
