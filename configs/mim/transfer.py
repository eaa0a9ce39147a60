"""Fine-tuning on other data after masked pre-training on ImageNet: PR-MIM Tab. 8.

python -m jaxprune.main --config=configs/mim/transfer.py:data=inat18 --config.run=runs/imagenet

    data    inat18 (TFDS), inat19 or nabirds (folders: path=DIR with train/ and val/, of class directories)
    size    base or large

Trains for 360 epochs, otherwise as on ImageNet (configs/mim/imagenet_finetune.py). The 437,513, 265,213 and 23,929
training images give 1.2, 0.75 and 0.07 times as many steps as 100 epochs of ImageNet.
"""

from jaxprune.commands import finetune
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

# base learning rate, layer-wise decay, drop path: those of ImageNet
RECIPES = {"base": (5e-4, 0.65, 0.1), "large": (1e-3, 0.75, 0.2)}
DATA = {
    "inat18": {"source": "tfds", "name": "i_naturalist2018", "eval_split": "validation"},
    "inat19": {"source": "folder", "eval_split": "val"},
    "nabirds": {"source": "folder", "eval_split": "val"},
}


def get_config(arg=None):
    args = parse_arg(arg, data="inat18", size="base", path="")
    if args.data not in DATA:
        raise unknown("data", args.data, DATA)
    if args.size not in RECIPES:
        raise unknown("size", args.size, RECIPES)
    base_lr, layer_decay, drop_path_rate = RECIPES[args.size]
    config = finetune.recipe(
        batch_size=1024,
        epochs=360.0,
        dtype="bfloat16",
        checkpoint_every=1000,
        loss="cross_entropy",
        ema_decay=0.0,
        model={
            "name": f"vit_{args.size}_patch16_224",
            "global_pool": "avg",
            "drop_path_rate": drop_path_rate,
            "head_init_scale": 1e-3,
        },
        optimizer={
            "name": "adamw",
            "base_lr": base_lr,
            "lr_norm": 256,
            "b1": 0.9,
            "b2": 0.999,
            "weight_decay": 0.05,
            "clip_norm": 0.0,
            "warmup_epochs": 5.0,
            "warmup_lr": 0.0,
            "min_lr": 1e-6,
            "cosine_from_start": False,
            "milestones": (),
            "layer_decay": layer_decay,
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
            **DATA[args.data],
            "path": args.path,
            "img_size": 224,
            "crop": "random_resized",
            "crop_scale": (0.08, 1.0),
            "eval_crop": "center",
            "crop_pct": 0.875,
            "interpolation": "bicubic",
            "randaugment": "rand-m9-mstd0.5-inc1",
            "cutout": 0.0,
            "repeats": 1,
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
        },
    )
    return finetune.smoke(config) if args.smoke else config
