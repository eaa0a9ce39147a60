"""Segmentation of the built-in scenes: the wall, and ten shapes in front of it. Takes minutes, and no download.

python -m jaxprune.main --config=configs/dense/scenes.py[:head=upernet] --workdir=runs/scenes_segment

    head   linear, fcn, upernet (default), segvit, or dtop, whose tokens leave when they are sure of their class

The scenes have 64 × 64 pixels and their exact label maps. `--config.run=RUN` starts the encoder from a pre-training
run of the same sizes, such as that of configs/ranking/scenes.py. To test the network under plans:

python -m jaxprune.main --config=configs/dense/scenes.py --config.segmenter=runs/scenes_segment --config.data.source= \\
    --config.plans="('tome','topk','random')" --config.keep_rate=0.5 --workdir=runs/scenes_plans
"""

from jaxprune.commands import segment
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

HEADS = {
    "linear": {"name": "linear", "indices": (3,), "dropout": 0.0},
    "fcn": {"name": "fcn", "features": 64, "dropout": 0.1},
    "upernet": {
        "name": "upernet",
        "indices": (0, 1, 2, 3),
        "features": 24,
        "pool_scales": (1, 2, 3, 6),
        "auxiliary_index": 2,
        "auxiliary_features": 24,
        "auxiliary_weight": 0.4,
        "dropout": 0.1,
    },
    "segvit": {
        "name": "segvit",
        "indices": (1, 2, 3),
        "features": 48,
        "head_heads": 4,
        "layers": 2,
        "dropout": 0.0,
        "absent_weight": 0.1,
        "class_weight": 1.0,
        "mask_weight": 20.0,
        "dice_weight": 1.0,
    },
}
HEADS["dtop"] = {
    **HEADS["segvit"],
    "name": "dtop",
    "exits": "confidence",
    "thresholds": 0.95,
    "keep_per_class": 5,
    "keep_rates": 1.0,
}


def get_config(arg=None):
    args = parse_arg(arg, head="upernet", seed=0)
    if args.head not in HEADS:
        raise unknown("head", args.head, HEADS)
    config = segment.recipe(
        seed=args.seed,
        batch_size=16,
        steps=1600,
        dtype="float32",
        eval_every=800,
        checkpoint_every=200,
        frozen=False,
        valid_only=False,
        model={
            "name": "vit",
            "patch_size": 8,
            "embed_dim": 96,
            "depth": 4,
            "num_heads": 3,
            "drop_path_rate": 0.0,
        },
        head=HEADS[args.head],
        optimizer={
            "name": "adamw",
            "lr": 3e-3,
            "power": 1.0,
            "min_lr": 0.0,
            "warmup_steps": 50,
            "warmup_ratio": 1e-6,
            "b1": 0.9,
            "b2": 0.999,
            "weight_decay": 0.05,
            "layer_decay": 1.0,
            "clip_norm": 1.0,
        },
        data={
            "source": "scenes",
            "num_train": 4000,
            "num_eval": 500,
            "img_size": 64,
            "box": (),
            "ratio": (1.0, 1.0),
            "class_share": 0.0,
            "flip": True,
            "distort": False,
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
        },
        test={"mode": "whole", "stride": (), "flip": False, "scales": (1.0,)},
    )
    return segment.smoke(config) if args.smoke else config
