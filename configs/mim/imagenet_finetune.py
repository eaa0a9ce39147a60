"""Fine-tuning on ImageNet-1k after masked pre-training: PR-MIM Tab. 14; SimMIM Sec. 4.1.

python -m jaxprune.main --config=configs/mim/imagenet_finetune.py:size=base --config.run=runs/imagenet

    size       base (100 epochs) or large (50 epochs)
    framework  mae (default), or simmim, whose ViT-B has a relative position table in every block

    blocks     number of last blocks to train (PR-MIM Fig. 6); -1: all blocks; 0: only the norm and the head

`run` is a pre-training run of configs/mim/imagenet.py or configs/mim/simmim.py; use `--config.model.weights` for a file
of published MAE, SimMIM or timm weights.
"""

from jaxprune.commands import finetune
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

# base learning rate, epochs, layer-wise decay, drop path
RECIPES = {"base": (5e-4, 100.0, 0.65, 0.1), "large": (1e-3, 50.0, 0.75, 0.2)}
SIMMIM = {"base": (1.25e-3, 100.0, 0.65, 0.1)}
# network, batch size, lr_norm, warm-up epochs, whether the cosine includes them, clip_norm
FRAMEWORKS = {"mae": ("vit", 1024, 256, 5.0, False, 0.0), "simmim": ("beit", 2048, 512, 20.0, True, 5.0)}


def get_config(arg=None):
    args = parse_arg(arg, size="base", framework="mae", blocks=-1)
    recipes = {"mae": RECIPES, "simmim": SIMMIM}
    if args.framework not in recipes:
        raise unknown("framework", args.framework, recipes)
    if args.size not in recipes[args.framework]:
        raise unknown("size", args.size, recipes[args.framework])
    base_lr, epochs, layer_decay, drop_path_rate = recipes[args.framework][args.size]
    network, batch_size, lr_norm, warmup_epochs, cosine_from_start, clip_norm = FRAMEWORKS[args.framework]
    config = finetune.recipe(
        batch_size=batch_size,
        epochs=epochs,
        dtype="bfloat16",
        checkpoint_every=1000,
        trainable_blocks=args.blocks,
        loss="cross_entropy",
        ema_decay=0.0,
        model={
            "name": f"{network}_{args.size}_patch16_224",
            "global_pool": "avg",
            "drop_path_rate": drop_path_rate,
            "head_init_scale": 1e-3,
        },
        optimizer={
            "name": "adamw",
            "base_lr": base_lr,
            "lr_norm": lr_norm,
            "b1": 0.9,
            "b2": 0.999,
            "weight_decay": 0.05,
            "clip_norm": clip_norm,
            "warmup_epochs": warmup_epochs,
            "warmup_lr": 0.0,
            "min_lr": 1e-6,
            "cosine_from_start": cosine_from_start,
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
    return finetune.smoke(config) if args.smoke else config
