"""SimMIM, plain partial reconstruction and PR-MIM on top of it, on ImageNet-1k: SimMIM Sec. 4.1, PR-MIM Tab. 4.

python -m jaxprune.main --config=configs/mim/simmim.py:method=prmim,encoder=vit,epochs=100

    method   simmim (default), partial or prmim, which leave mask tokens out of a ViT's encoder
    encoder  vit, ViT-B/16 at 224 pixels (default), or swin, Swin-B with windows of 6 at 192 pixels
    epochs   800 (default of the ViT), 100 (of the Swin)          throw  share of the patches thrown, .3

Published top-1 after fine-tuning ViT-B (PR-MIM Tab. 4): 100 epochs SimMIM 81.6, partial .3 81.0, PR-MIM .3 81.7; 800
epochs SimMIM 83.8, PR-MIM .3 83.8. Memory of PR-MIM .3 relative to SimMIM: 0.61.

Cost of a forward pass per image: ViT-B 17.7 G multiply-accumulates; with .3 thrown 12.4 G, which is 0.70 of that. (The
0.50 in the table does not match: it would need .5 thrown.) Swin-B 11.4 G.

Fine-tuning: configs/mim/imagenet_finetune.py:framework=simmim,encoder=vit (or swin).

Needs the TFDS data set `imagenet2012` prepared as ArrayRecord, or --config.data.source=folder and --config.data.path.
"""

from jaxprune.commands import pretrain
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

RECONSTRUCTION = {"simmim": "full", "partial": "partial", "prmim": "progressive"}
ENCODERS = {"vit": "vit_base_patch16_224", "swin": "swin_base_patch4_window6_192"}
BATCH = 2048
SCALE = BATCH / 512  # for all learning rates


def get_config(arg=None):
    args = parse_arg(arg, method="simmim", encoder="vit", epochs=0.0, throw=0.3)
    if args.method not in RECONSTRUCTION:
        raise unknown("method", args.method, RECONSTRUCTION)
    if args.encoder not in ENCODERS:
        raise unknown("encoder", args.encoder, ENCODERS)
    # Learning rates are for 512 images; the ViT's drops to a tenth after 700 of 800 epochs, the Swin's is a cosine.
    if args.encoder == "vit":
        img_size, positions, drop_path_rate = 224, {"rel_pos": "shared", "pos_embed": "none"}, 0.1
        epochs = args.epochs or 800.0
        rates = {"base_lr": 1e-4, "warmup_lr": 5e-7 * SCALE, "min_lr": 0.0, "milestones": (0.875 * epochs,)}
    else:
        img_size, positions, drop_path_rate = 192, {}, 0.0
        epochs = args.epochs or 100.0
        rates = {"base_lr": 2e-4, "warmup_lr": 1e-6 * SCALE, "min_lr": 1e-5 * SCALE, "milestones": ()}
    config = pretrain.recipe(
        batch_size=BATCH,
        epochs=epochs,
        dtype="bfloat16",
        checkpoint_every=1000,
        flip=True,
        mim={
            "name": "simmim",
            "encoder": ENCODERS[args.encoder],
            "mask_patch": 32,
            "mask_ratio": 0.6,
            "reconstruction": RECONSTRUCTION[args.method],
            "throw_ratio": 0.0 if args.method == "simmim" else args.throw,
            "retain": "furthest",
            "kernel_size": 7,
            "aggregation": "thrown",
            "drop_path_rate": drop_path_rate,
            "remat": False,
            **positions,
        },
        optimizer={
            "name": "adamw",
            **rates,
            "lr_norm": 512,
            "b1": 0.9,
            "b2": 0.999,
            "weight_decay": 0.05,
            "clip_norm": 5.0,
            "warmup_epochs": 10.0,
            "cosine_from_start": args.encoder == "swin",
        },
        data={
            "source": "tfds",
            "name": "imagenet2012",
            "eval_split": "validation",
            "img_size": img_size,
            "crop": "random_resized",
            "crop_scale": (0.67, 1.0),
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
    return pretrain.smoke(config) if args.smoke else config
