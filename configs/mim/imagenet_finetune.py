"""Fine-tuning on ImageNet-1k after masked pre-training: PR-MIM Tab. 14, and the recipes of the other frameworks.

python -m jaxprune.main --config=configs/mim/imagenet_finetune.py:size=base --config.run=runs/imagenet

    framework  mae (default; also for mff), simmim, greenmim, localmim or tec
    encoder    vit or swin, for simmim and localmim: vit (default); greenmim has a Swin
    size       base or large
    after      for localmim the epochs of pre-training, for tec also the teacher, such as mae-300: see RECIPES
    blocks     number of last blocks to train (PR-MIM Fig. 6); -1: all blocks; 0: only the norm and the head

`run` is a pre-training run of configs/mim; use `--config.model.weights` for a file of published MAE, SimMIM, GreenMIM
or timm weights.

Published top-1 (pre-training epochs):

    mae       ViT-B 81.7 (100), 83.3 (800); see configs/mim/imagenet.py
    simmim    ViT-B 83.8 (800); Swin-B pre-trained at 192 pixels 83.5 (100), 84.0 (800); with fine-tuning at 192 pixels
              too, 82.8 (100)
    greenmim  Swin-B 83.2 (100, PR-MIM Tab. 5), with PR-MIM 83.3; 83.8 (repository). Swin-L 83.8 (100), with PR-MIM
              83.9; 85.1 (repository)
    localmim  ViT-B 84.0 (1600), ViT-L 85.8 (800); Swin-B 84.0 with pixels, 84.1 with HOG (400), Swin-L 85.6 (800)
    tec       ViT-B of MAE 84.7 (300), 84.8 (800); of iBOT 84.8 (300), 85.1 (800); ViT-L of MAE 86.5 (300)

`--config.model.img_size=192
--config.model.window_size=6 --config.data.img_size=192` fine-tunes SimMIM's Swin at that size.
"""

from typing import NamedTuple

from jaxprune.commands import finetune
from jaxprune.config import parse_arg
from jaxprune.errors import unknown


class Recipe(NamedTuple):
    """The numbers that differ; `base_lr` is for `lr_norm` images, the other rates are absolute."""

    base_lr: float
    layer_decay: float
    epochs: float = 100.0
    warmup_epochs: float = 5.0
    drop_path_rate: float = 0.1
    lr_norm: int = 256
    batch_size: int = 1024
    warmup_lr: float = 0.0
    min_lr: float = 1e-6
    window_size: int = 7
    as_simmim: bool = False  # limits of the rate by layer, clipping, and a cosine that begins with the warm-up


def simmim(base_lr: float, layer_decay: float, batch_size: int, *, least: float = 2.5e-7, **values) -> Recipe:
    """A recipe of SimMIM's code, whose rates are all for 512 images."""
    scaled = {"warmup_lr": 2.5e-7 * batch_size / 512, "min_lr": least * batch_size / 512, **values}
    common = {"warmup_epochs": 20.0, "lr_norm": 512, "batch_size": batch_size, "as_simmim": True}
    return Recipe(base_lr, layer_decay, **{**common, **scaled})


# By framework, encoder, size, and what else it depends on: the first is the default.
RECIPES = {
    ("mae", "vit", "base"): {"": Recipe(5e-4, 0.65)},
    ("mae", "vit", "large"): {"": Recipe(1e-3, 0.75, epochs=50.0, drop_path_rate=0.2)},
    ("simmim", "vit", "base"): {"": simmim(1.25e-3, 0.65, 2048)},
    ("simmim", "swin", "base"): {"": simmim(1.25e-3, 0.9, 2048)},
    ("greenmim", "swin", "base"): {"": simmim(1.25e-3, 0.9, 1024)},
    ("greenmim", "swin", "large"): {
        "": simmim(1e-3, 0.8, 768, least=3.5e-7, warmup_lr=2e-7 * 768 / 512, drop_path_rate=0.3, window_size=14)
    },
    ("localmim", "vit", "base"): {
        "100": Recipe(1e-3, 0.75, warmup_epochs=20.0),  # 4e-3 at this batch size
        "1600": Recipe(5e-4, 0.65, warmup_epochs=20.0, min_lr=1e-5),
    },
    ("localmim", "vit", "large"): {"800": Recipe(7.5e-4, 0.75, epochs=50.0, drop_path_rate=0.2)},
    ("localmim", "swin", "base"): {
        "100": Recipe(1.25e-3, 0.9, warmup_epochs=20.0, min_lr=2.5e-7),
        "400": Recipe(1e-3, 0.9, warmup_epochs=20.0, min_lr=2.5e-7),  # of pixels
        "400-hog": Recipe(5e-4, 0.9, warmup_epochs=20.0, batch_size=2048, min_lr=2.5e-7),  # the same rate in all
    },
    ("localmim", "swin", "large"): {
        "800": Recipe(
            2.5e-4, 0.8, warmup_epochs=20.0, drop_path_rate=0.3, batch_size=2048, min_lr=2.5e-7, window_size=14
        )
    },
    ("tec", "vit", "base"): {
        "ibot-300": Recipe(5e-4, 0.5),
        "ibot-800": Recipe(5e-4, 0.55, warmup_epochs=20.0),
        "mae-100": Recipe(5e-4, 0.65),
        "mae-300": Recipe(5e-4, 0.65, warmup_epochs=20.0),
        "mae-800": Recipe(5e-4, 0.55, warmup_epochs=20.0),
    },
    ("tec", "vit", "large"): {"mae-300": Recipe(1e-3, 0.65, epochs=50.0, min_lr=1e-5)},
}
# As in pre-training: the MLP of TEC's CLS token trains, its positions do not.
TEC = {"cls_token_mlp": True, "pos_embed": "sincos"}


def get_config(arg=None):
    args = parse_arg(arg, size="base", framework="mae", encoder="", after="", blocks=-1)
    network = args.encoder or ("swin" if args.framework == "greenmim" else "vit")
    for thing, place, value in (("framework", 0, args.framework), ("encoder", 1, network), ("size", 2, args.size)):
        prefix = (args.framework, network)[:place]
        choices = dict.fromkeys(names[place] for names in RECIPES if names[:place] == prefix)
        if value not in choices:
            raise unknown(thing, value, choices)
    recipes = RECIPES[args.framework, network, args.size]
    after = args.after or next(iter(recipes))
    if after not in recipes:
        raise unknown("pre-training", after, recipes)
    recipe = recipes[after]
    if network == "swin":
        model = {"name": f"swin_{args.size}_patch4_window7_224", "window_size": recipe.window_size}
    else:
        model = {"name": f"{'beit' if args.framework == 'simmim' else 'vit'}_{args.size}_patch16_224"}
    config = finetune.recipe(
        batch_size=recipe.batch_size,
        epochs=recipe.epochs,
        dtype="bfloat16",
        checkpoint_every=1000,
        trainable_blocks=args.blocks,
        loss="cross_entropy",
        ema_decay=0.0,
        model={
            **model,
            **(TEC if args.framework == "tec" else {}),
            "global_pool": "avg",
            "drop_path_rate": recipe.drop_path_rate,
            # times a standard deviation of 0.02; SimMIM's Swin begins with that of all layers
            "head_init_scale": 1.0 if recipe.as_simmim and network == "swin" else 1e-3,
        },
        optimizer={
            "name": "adamw",
            "base_lr": recipe.base_lr,
            "lr_norm": recipe.lr_norm,
            "b1": 0.9,
            "b2": 0.999,
            "weight_decay": 0.05,
            "clip_norm": 5.0 if recipe.as_simmim else 0.0,
            "warmup_epochs": recipe.warmup_epochs,
            "warmup_lr": recipe.warmup_lr,
            "min_lr": recipe.min_lr,
            "cosine_from_start": recipe.as_simmim,
            "milestones": (),
            "layer_decay": recipe.layer_decay,
            "limits_decay": not recipe.as_simmim,
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
