"""AMT on ImageNet-1k (Gui et al., 2022): masks and throws patches by the encoder's attention; MAE or SimMIM; PR-MIM.

python -m jaxprune.main --config=configs/mim/amt.py:base=mae,method=partial,epochs=400

    base    mae (default) or simmim
    method  partial, AMT as published (default); full, the base with the same visible patches; prmim, which reconstructs
            the thrown ones
    epochs  400 on MAE and 200 on SimMIM, as published

On MAE, 45% of the patches are masked and 40% thrown; the first 41 epochs are plain MAE with mask ratio .75. On SimMIM,
45% of the blocks of 32 pixels are masked and 24% thrown (ratios of .44 and .24, rounded up); the first 40 epochs mask
45% at random. AMT's repository throws .26: `--config.mim.amt_throw_ratio=0.26`. After that, patches are weighted by
the attention of the encoder as it was at the start of epoch 41, 81, … (counted from 0; on SimMIM 40, 80, …).

Published top-1 of ViT-B after fine-tuning (PR-MIM Tab. 6): MAE with AMT 82.8 after 400 epochs, SimMIM with AMT 80.7
after 200. Cost of AMT relative to MAE, forward pass: 0.61 of the FLOPs and, as published, a pass over the data set
every 40 epochs. Here a copy of the encoder computes the weights of the cropped images at each step instead, which costs
16.5 GFLOPs per image in addition to AMT's 5.9: see `jaxprune.mim.parts.attention_masking`.

Needs the TFDS data set `imagenet2012` prepared as ArrayRecord, or --config.data.source=folder and --config.data.path.
"""

from jaxprune.commands import pretrain
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

RECONSTRUCTION = {"partial": "partial", "full": "full", "prmim": "progressive"}
COMMON = {
    "encoder": "vit_base_patch16_224",
    "refresh_epochs": 40,
    "kernel_size": 7,
    "aggregation": "thrown",
    "remat": False,
}
MAE = {
    "name": "amt",
    **COMMON,
    "decoder_embed_dim": 512,
    "decoder_depth": 8,
    "decoder_num_heads": 16,
    "mask_ratio": 0.45,
    "amt_throw_ratio": 0.40,
    "norm_pix_loss": True,
    "warmup_epochs": 41,  # of plain MAE: epochs 0 to 40, as published
    "warmup_mask_ratio": 0.75,
}
MAE_OPTIMIZER = {
    "base_lr": 1.5e-4,
    "lr_norm": 256,
    "b2": 0.95,
    "clip_norm": 0.0,
    "warmup_epochs": 40.0,
    "warmup_lr": 0.0,
    "min_lr": 0.0,
    "cosine_from_start": False,
}
SIMMIM = {
    "name": "amt_simmim",
    **COMMON,
    "warmup_epochs": 40,  # of plain SimMIM
    "mask_patch": 32,
    "mask_ratio": 0.44,
    "amt_throw_ratio": 0.24,
    "rel_pos": "none",
    "pos_embed": "learn",
    "drop_path_rate": 0.1,
}
SCALE = 2048 / 512
SIMMIM_OPTIMIZER = {
    "base_lr": 1e-4,  # learning rates are for 512 images
    "lr_norm": 512,
    "b2": 0.999,
    "clip_norm": 5.0,
    "warmup_epochs": 10.0,
    "warmup_lr": 5e-7 * SCALE,
    "min_lr": 5e-6 * SCALE,
    "cosine_from_start": True,
}
# framework, optimizer, epochs, batch size, smallest area of the random crops, their resizing
BASES = {
    "mae": (MAE, MAE_OPTIMIZER, 400.0, 4096, 0.2, "bicubic"),
    "simmim": (SIMMIM, SIMMIM_OPTIMIZER, 200.0, 2048, 0.67, "bilinear"),
}


def get_config(arg=None):
    args = parse_arg(arg, base="mae", method="partial", epochs=0.0)
    if args.base not in BASES:
        raise unknown("base", args.base, BASES)
    if args.method not in RECONSTRUCTION:
        raise unknown("method", args.method, RECONSTRUCTION)
    mim, optimizer, epochs, batch_size, smallest_crop, interpolation = BASES[args.base]
    config = pretrain.recipe(
        batch_size=batch_size,
        epochs=args.epochs or epochs,
        dtype="bfloat16",
        checkpoint_every=1000,
        flip=True,
        mim={**mim, "reconstruction": RECONSTRUCTION[args.method]},
        optimizer={"name": "adamw", "b1": 0.9, "weight_decay": 0.05, "milestones": (), **optimizer},
        data={
            "source": "tfds",
            "name": "imagenet2012",
            "eval_split": "validation",
            "img_size": 224,
            "crop": "random_resized",
            "crop_scale": (smallest_crop, 1.0),
            "eval_crop": "center",
            "crop_pct": 0.875,
            "interpolation": interpolation,
            "randaugment": "",
            "cutout": 0.0,
            "repeats": 1,
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
        },
    )
    if args.smoke:
        pretrain.smoke(config)
        config.epochs = 3.0
        config.mim.update(warmup_epochs=1, refresh_epochs=1)
    return config
