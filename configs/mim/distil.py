"""Distils the features of a network into a smaller ViT on images without labels; with PR-MIM on the patches left out.

python -m jaxprune.main --config=configs/mim/distil.py:method=full --config.teacher.weights=FILE
    --config.teacher.name=vit_large_patch16_224 --config.data.path=IMAGES

    method  full (default): the student sees every patch; partial: it sees some and learns their features; prmim: it
            sees some and learns the features of all
    throw   share of the patches that the student does not see with partial and prmim (.5)
    size    of the student: tiny, small (default) or base
    epochs  100 (default)

The teacher is a published file (`teacher.weights`, for the network `teacher.name`) or a run directory (`teacher.run`):
any network with features, a ViT or a hierarchical one. It sees the same images whole. The teacher is stored with the
run. Head and loss are those of Pixio's distillation, except that the features are taken after the teacher's final norm
(`norm`) and no blocks are masked. The settings of the optimizer are Pixio's for batches of 8192 images, with the
learning rate scaled to the batch size; the number of epochs depends on the images. Nothing here was tuned.

Images: --config.data.path, a folder of pictures, or another source.
"""

from jaxprune.commands import pretrain
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

RECONSTRUCTION = {"full": "full", "partial": "partial", "prmim": "progressive"}
SIZES = ("tiny", "small", "base")


def get_config(arg=None):
    args = parse_arg(arg, method="full", throw=0.5, size="small", epochs=100)
    if args.method not in RECONSTRUCTION:
        raise unknown("method", args.method, RECONSTRUCTION)
    if args.size not in SIZES:
        raise unknown("size", args.size, SIZES)
    config = pretrain.recipe(
        batch_size=1024,
        epochs=float(args.epochs),
        dtype="bfloat16",
        checkpoint_every=1000,
        flip=True,
        mim={
            "name": "distil",
            "encoder": f"vit_{args.size}_patch16_224",
            "norm": True,  # features after the teacher's final norm
            "smooth_l1": 0.0,  # share of the smooth L1 distance beside 1 - cosine
            "cls_weight": 0.5,  # weight of the feature of the whole image; of the patches 1 - cls_weight
            "reconstruction": RECONSTRUCTION[args.method],
            "throw_ratio": 0.0 if args.method == "full" else args.throw,
            "retain": "random",
            "kernel_size": 7,
            "aggregation": "thrown",
            "remat": False,
        },
        optimizer={
            "name": "adamw",
            "base_lr": 1e-3,
            "lr_norm": 8192,
            "b1": 0.9,
            "b2": 0.95,
            "weight_decay": 0.05,
            "clip_norm": 0.0,
            "warmup_epochs": 0.1 * float(args.epochs),
            "warmup_lr": 0.0,
            "min_lr": 0.0,
            "cosine_from_start": False,
            "milestones": (),
        },
        data={
            "source": "folder",
            "path": "",
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
