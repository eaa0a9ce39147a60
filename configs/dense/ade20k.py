"""UperNet on ADE20K: PR-MIM Tab. 9, with the settings of MAE's segmentation (implus/mae_segmentation), 160,000 steps.

python -m jaxprune.main --config=configs/dense/ade20k.py --config.run=runs/imagenet --config.data.path=TFDS_DIRECTORY

    size         base or large
    layer_decay  PR-MIM's .75; MAE's settings have .65

`run` is a pre-training run of configs/mim; use `--config.model.weights` for a published MAE file. The data set is
TFDS's `scene_parse150` in ArrayRecord files: 20,210 images to train on, 2,000 to test on. For the original folders give
`--config.data.source=folder --config.data.train_split=training --config.data.eval_split=validation` with the `path` of
ADEChallengeData2016.

Published, ViT-B pre-trained for 800 epochs (mIoU / mAcc): MAE 46.8 / 57.6, with half of the targets thrown 45.5 / 56.6,
PR-MIM 46.9 / 58.2. MAE's published ViT-B, decay .65: 48.15 / 58.99, aAcc 83.05. Not repeated here. PR-MIM states
neither the learning rate nor the drop path; those here are implus's. Drop path .2 of the large network is BEiT's.

Cost of ViT-B: 163.9 million parameters; 605 GFLOPs a window of 512 pixels, 483 of them the head's. The published log
has .58 s a step on 8 GPUs of 2 images and 21 GB each: about 26 hours.
"""

from jaxprune.commands import segment
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

SIZES = {"base": ((3, 5, 7, 11), 768, 0.1), "large": ((7, 11, 15, 23), 1024, 0.2)}


def get_config(arg=None):
    args = parse_arg(arg, size="base", layer_decay=0.75)
    if args.size not in SIZES:
        raise unknown("size", args.size, SIZES)
    indices, features, drop_path_rate = SIZES[args.size]
    config = segment.recipe(
        batch_size=16,
        steps=160_000,
        dtype="bfloat16",
        eval_every=16_000,
        checkpoint_every=1000,
        frozen=False,
        valid_only=False,
        model={
            "name": f"vit_{args.size}_patch16_224",
            "style": "beit",  # a table of relative positions in each block, beside MAE's absolute ones
            "init_values": 1.0 if args.size == "base" else 1e-6,
            "drop_path_rate": drop_path_rate,
        },
        head={
            "name": "upernet",
            "indices": indices,
            "features": features,
            "pool_scales": (1, 2, 3, 6),
            "auxiliary_index": 2,
            "auxiliary_features": 256,
            "auxiliary_weight": 0.4,
            "dropout": 0.1,
        },
        optimizer={
            "name": "adamw",
            "lr": 1e-4,
            "power": 1.0,
            "min_lr": 0.0,
            "warmup_steps": 1500,
            "warmup_ratio": 1e-6,
            "b1": 0.9,
            "b2": 0.999,
            "weight_decay": 0.05,
            "layer_decay": args.layer_decay,
            "clip_norm": 0.0,
        },
        data={
            "source": "tfds",
            "name": "scene_parse150",
            "classes": "scene_parse150",
            "reduce_zero_label": True,
            "img_size": 512,
            "box": (2048, 512),
            "ratio": (0.5, 2.0),
            "class_share": 0.75,
            "flip": True,
            "distort": True,
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
        },
        test={"mode": "slide", "stride": (341, 341), "flip": False, "scales": (1.0,)},
    )
    return segment.smoke(config) if args.smoke else config
