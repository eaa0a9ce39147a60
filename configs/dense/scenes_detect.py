"""Detection and instance segmentation in the built-in scenes: ten shapes, their boxes and masks. Takes minutes.

python -m jaxprune.main --config=configs/dense/scenes_detect.py[:seed=1]

A Mask R-CNN on a small ViT with windows. The scenes have 64 × 64 pixels and one object each; nothing is downloaded.
`--config.run=RUN` starts the encoder from a pre-training run of the same sizes, such as that of
configs/ranking/scenes.py. To test the network under plans, whose dropped rows come back with their last value:

python -m jaxprune.main --config=configs/dense/scenes_detect.py --config.detector=runs/scenes_detect \\
    --config.data.source= --config.plans="('topk:restore=last','random:restore=last')" --config.keep_rate=0.5 \\
    --config.rounds=7 --workdir=runs/scenes_detect_plans
"""

from jaxprune.commands import detect
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, seed=0)
    config = detect.recipe(
        seed=args.seed,
        batch_size=16,
        steps=1000,
        dtype="float32",
        eval_every=500,
        checkpoint_every=200,
        frozen=False,
        model={
            "name": "vitdet",
            "patch_size": 8,
            "pretrain_img_size": 64,
            "window_size": 4,
            "embed_dim": 96,
            "depth": 4,
            "num_heads": 3,
            "global_blocks": (1, 3),
            "drop_path_rate": 0.0,
        },
        head={
            "name": "mask_rcnn",
            "features": 32,
            "hidden": 128,
            "anchor_sizes": (8, 16, 24, 32, 48),
            "rpn_batch": 64,
            "roi_batch": 32,
            "before_nms": (64, 32),
            "after_nms": (32, 16),
            "min_score": 0.05,
            "overlap": 0.5,
            "max_detections": 10,
        },
        optimizer={
            "lr": 1e-3,
            "milestones": (0.75, 0.92),
            "gamma": 0.1,
            "warmup_steps": 50,
            "warmup_ratio": 0.001,
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
            "scale": (0.8, 1.25),
            "flip": 0.5,
            "masks": "bitmaps",
            "num_objects": 1,
            "num_edges": 512,
            "num_polygons": 16,
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
        },
    )
    return detect.smoke(config) if args.smoke else config
