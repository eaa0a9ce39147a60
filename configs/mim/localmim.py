"""LocalMIM, plain partial reconstruction and PR-MIM on it, on ImageNet-1k: Wang et al. (2023), and PR-MIM Tab. 4.

python -m jaxprune.main --config=configs/mim/localmim.py:method=prmim,epochs=100

    method   localmim, partial or prmim      throw   share of the patches thrown: .65 (default)
    encoder  vit (default) or swin           size    base or large
    target   hog (default) or pixels, which are published for a Swin only
    epochs   100 (default); published too: ViT-B 1600, ViT-L 800, Swin-B 400, Swin-L 800

Published top-1 after 100 epochs and fine-tuning (ViT-B): LocalMIM 83.3, partial .65 82.9, PR-MIM .65 83.3. Cost of
PR-MIM .65 relative to LocalMIM: 0.91 of the FLOPs, 0.84 of the memory. LocalMIM's repository has ViT-B 84.0 and ViT-L
85.8; Swin-B 84.1 and Swin-L 85.6 with HOG, and Swin-B 84.0 with pixels. Fine-tuning:
configs/mim/imagenet_finetune.py:framework=localmim, with `after` the epochs and, for Swin, `encoder=swin`.

Needs the TFDS data set `imagenet2012` prepared as ArrayRecord, or --config.data.source=folder and --config.data.path.
"""

from jaxprune.commands import pretrain
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

RECONSTRUCTION = {"localmim": "full", "partial": "partial", "prmim": "progressive"}
HOG = {"num_bins": 18, "hog_bias": True}  # of all but the ViT-B
PATCHES = {"name": "localmim", "decoder_embed_dim": 256, "decoder_depth": 1, "decoder_num_heads": 8}
CELLS = {"name": "localmim_swin", "decoder_embed_dim": 128, "decoder_depth": 1, "decoder_num_heads": 4}
# By encoder and size: arguments of the framework, those of HOG, rate of 256 images, batch, least rate.
NETWORKS = {
    ("vit", "base"): ({**PATCHES, "encoder": "vit_base_patch16_224"}, {"num_bins": 9}, 2e-4, 2048, 1e-6),
    ("vit", "large"): ({**PATCHES, "encoder": "vit_large_patch16_224"}, HOG, 1.5e-4, 4096, 1e-6),
    ("swin", "base"): ({**CELLS, "encoder": "swin_base_patch4_window7_224", "window_size": 7}, HOG, 1e-4, 2048, 0.0),
    ("swin", "large"): ({**CELLS, "encoder": "swin_large_patch4_window7_224", "window_size": 14}, HOG, 1e-4, 4096, 0.0),
}
TARGETS = {"hog": {}, "pixels": {"norm_pix_loss": True}}


def get_config(arg=None):
    args = parse_arg(arg, method="prmim", encoder="vit", size="base", target="hog", epochs=100, throw=0.65)
    if args.method not in RECONSTRUCTION:
        raise unknown("method", args.method, RECONSTRUCTION)
    for thing, place, value in (("encoder", 0, args.encoder), ("size", 1, args.size)):
        if value not in (choices := dict.fromkeys(names[place] for names in NETWORKS)):
            raise unknown(thing, value, choices)
    if args.target not in TARGETS:
        raise unknown("target", args.target, TARGETS)
    network, bins, base_lr, batch_size, min_lr = NETWORKS[args.encoder, args.size]
    config = pretrain.recipe(
        batch_size=batch_size,
        epochs=float(args.epochs),
        dtype="bfloat16",
        checkpoint_every=1000,
        flip=True,
        mim={
            **network,
            **(TARGETS[args.target] or bins),
            "target": args.target,
            "mask_ratio": 0.75,
            "reconstruction": RECONSTRUCTION[args.method],
            "throw_ratio": 0.0 if args.method == "localmim" else args.throw,
            "retain": "furthest",
            "kernel_size": 7,
            "aggregation": "thrown",
            "remat": False,
        },
        optimizer={
            "name": "adamw",
            "base_lr": base_lr,
            "lr_norm": 256,
            "b1": 0.9,
            "b2": 0.95,
            "weight_decay": 0.05,
            "clip_norm": 0.0,
            "warmup_epochs": 40.0 if args.epochs > 100 else 10.0,
            "warmup_lr": 0.0,
            "min_lr": min_lr,
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
