"""LTRP's efficient ViT on ImageNet-1k: fine-tuning on the 49 of 196 patches that a ranker selects.

python -m jaxprune.main --config=configs/ranking/efficient_imagenet.py:ranker=RUN,weights=mae_pretrain_vit_base.pth

    ranker        a run of configs/ranking/imagenet.py
    scorer        ltrp, the ranker; or another, such as random, the paper's baseline; empty: all patches
    train_scorer  trains the ranker with the classifier; by default it is frozen
    size          base or small: the classifier
    weights       published weights to start from; or run, a run directory

This is the recipe of the published code: 50 epochs, base learning rate 1e-3, layer decay .75, RandAugment, erasing .25,
label smoothing .1, no mixup or CutMix. Needs the TFDS data set `imagenet2012` prepared as ArrayRecord, or
--config.data.source=folder and --config.data.path.
"""

from jaxprune.commands import finetune
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

SIZES = ("base", "small")


def get_config(arg=None):
    args = parse_arg(arg, ranker="", scorer="ltrp", train_scorer=False, keep_rate=0.25, size="base", weights="", run="")
    if args.size not in SIZES:
        raise unknown("size", args.size, SIZES)
    by_ranker = args.scorer == "ltrp" and args.ranker
    reduction = {"method": "from_scores", "keep_rate": args.keep_rate, "train_scorer": args.train_scorer}
    config = finetune.recipe(
        run=args.run,
        scorer=f"ltrp:run={args.ranker}" if by_ranker else args.scorer,
        **({"reduction": reduction} if args.scorer else {}),
        batch_size=1024,
        epochs=50.0,
        dtype="bfloat16",
        checkpoint_every=1000,
        loss="cross_entropy",
        ema_decay=0.0,
        model={
            "name": f"vit_{args.size}_patch16_224",
            "weights": args.weights,
            "global_pool": "token",
            "drop_path_rate": 0.1,
            "head_init_scale": 1e-3,
        },
        optimizer={
            "name": "adamw",
            "base_lr": 1e-3,
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
            "layer_decay": 0.75,
            "backbone_scale": 1.0,
            "freeze_epochs": 0.0,
        },
        augment={
            "flip": True,
            "erasing": 0.25,
            "mixup": 0.0,
            "cutmix": 0.0,
            "label_smoothing": 0.1,
        },
        data={
            "source": "tfds",
            "name": "imagenet2012",
            "eval_split": "validation",
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
    if args.smoke and args.scorer == "ltrp" and not args.ranker:
        config.update(scorer="centre", run="")
    return finetune.smoke(config) if args.smoke else config
