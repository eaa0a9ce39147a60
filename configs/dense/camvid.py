"""A head on frozen DINOv2 features for CamVid: 367 frames of 480 × 360 pixels, 11 classes, 233 frames to test on.

python -m jaxprune.main --config=configs/dense/camvid.py --config.data.path=DIR --config.model.weights=FILE

    head   linear (BatchNorm and one linear layer, as DINOv2 evaluates features), upernet, segvit, or dtop, whose tokens
           leave in the test when they are sure of their class

DIR holds train/, val/ and test/ with images/ and masks/, and classes.txt, one name a line; pixels of value 11 have no
class.
FILE holds the weights of `vit_small_patch14_dinov2`. The encoder sees 630 × 476 pixels, a grid of 45 × 34, and is run
once over the training frames and their mirrors; then the head is trained on these features. The test runs the whole
network. To compare plans afterwards:

python -m jaxprune.main --config=configs/dense/camvid.py --config.segmenter=runs/camvid --config.data.source= \\
    --config.plans="('tome:rounds=2','topk','random')" --config.keep_rate=0.7 --workdir=runs/camvid_plans
"""

from jaxprune.commands import segment
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

HEADS = {
    "linear": {"name": "linear", "indices": (11,), "dropout": 0.0},
    "upernet": {
        "name": "upernet",
        "indices": (3, 5, 7, 11),
        "features": 128,
        "pool_scales": (1, 2, 3, 6),
        "auxiliary_index": 2,
        "auxiliary_features": 64,
        "auxiliary_weight": 0.4,
        "dropout": 0.1,
    },
    "segvit": {
        "name": "segvit",
        "indices": (5, 7, 11),
        "features": 192,
        "head_heads": 6,
        "layers": 1,
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
    "thresholds": 0.9,
    "keep_per_class": 5,
    "keep_rates": 1.0,
}


def get_config(arg=None):
    args = parse_arg(arg, head="linear")
    if args.head not in HEADS:
        raise unknown("head", args.head, HEADS)
    config = segment.recipe(
        batch_size=16,
        steps=2000,
        dtype="float32",
        eval_every=0,
        checkpoint_every=500,
        frozen=True,
        mirrors=True,
        valid_only=args.head in ("linear", "upernet"),  # masks cover all pixels
        model={"name": "vit_small_patch14_dinov2", "drop_path_rate": 0.0},
        head=HEADS[args.head],
        optimizer={
            "name": "adamw",
            "lr": 1e-3,
            "power": 1.0,
            "min_lr": 0.0,
            "warmup_steps": 100,
            "warmup_ratio": 1e-6,
            "b1": 0.9,
            "b2": 0.999,
            "weight_decay": 1e-4,
            "layer_decay": 1.0,
            "clip_norm": 0.0,
        },
        data={
            "source": "folder",
            "path": "",
            "classes": "",
            "ignore": (11,),
            "train_split": "train",
            "eval_split": "test",
            "img_size": (476, 630),
            "box": (),
            "ratio": (1.0, 1.0),
            "class_share": 0.0,
            "flip": True,
            "distort": False,
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
        },
        test={"mode": "whole", "stride": (), "flip": False, "scales": (1.0,), "batch_size": 4},
    )
    return segment.smoke(config) if args.smoke else config
