"""Mask R-CNN on COCO: PR-MIM Tab. 10, with ViTDet's settings (detectron2), 100 epochs in batches of 32.

python -m jaxprune.main --config=configs/dense/coco.py --config.run=runs/imagenet --config.data.path=COCO_DIRECTORY

    size      base or large
    cascade   Cascade Mask R-CNN in place of Mask R-CNN, which PR-MIM does not use

`run` is a pre-training run of configs/mim; use `--config.model.weights` for a published MAE file. COCO_DIRECTORY holds
train2017/, val2017/ and annotations/instances_*2017.json; `pip install 'jaxprune[detection]'` is needed.

Published, ViT-B pre-trained for 800 epochs (AP of boxes / masks): MAE 51.0 / 45.2, with half of the targets thrown
50.2 / 44.6, PR-MIM 50.8 / 45.2. ViTDet, MAE's weights, batch 64: base 51.6 / 45.9, large 55.5 / 49.2; Cascade
54.0 / 46.7 and 57.6 / 50.0. Not repeated here. PR-MIM states a batch of 32 and half the learning rate: its 368,750
steps, their milestones and the warm-up of 250 steps are ViTDet's for that batch; so are all numbers of the large one.

Cost of ViT-B at 1024 pixels: 110.9 million parameters; 825 GFLOPs an image (multiply-accumulates), 467 of them the
encoder's. A step trains 32 images at about three times that: 29 · 10¹⁸ multiply-accumulates over the run. Memory of a
chip, as XLA's compiler for CPUs plans it: 8 GiB for one image, with `model.remat` or without, and 1.7 GiB for
parameters, moments and gradients. Not measured on an accelerator. `--config.mesh=data=-1` divides the batch over all
chips, and `--config.accumulate` into parts.
"""

from jaxprune.commands import detect
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

# Stochastic depth, and the factor on the rate from a layer to the one below.
SIZES = {"base": (0.1, 0.7), "large": (0.4, 0.8)}


def get_config(arg=None):
    args = parse_arg(arg, size="base", cascade=False)
    if args.size not in SIZES:
        raise unknown("size", args.size, SIZES)
    drop_path_rate, layer_decay = SIZES[args.size]
    config = detect.recipe(
        batch_size=32,
        steps=368_750,
        dtype="bfloat16",
        eval_every=36_875,
        checkpoint_every=1000,
        frozen=False,
        model={
            "name": f"vitdet_{args.size}_patch16_1024",
            "pretrain_img_size": 224,
            "window_size": 14,
            "drop_path_rate": drop_path_rate,
        },
        head={
            "name": "cascade_mask_rcnn" if args.cascade else "mask_rcnn",
            "features": 256,
            "hidden": 1024,
            "anchor_sizes": (32, 64, 128, 256, 512),
            "rpn_batch": 256,
            "roi_batch": 512,
            "before_nms": (2000, 1000),
            "after_nms": (1000, 1000),
            "min_score": 0.05,
            "overlap": 0.5,
            "max_detections": 100,
        },
        optimizer={
            "lr": 5e-5,
            "milestones": (8 / 9, 26 / 27),
            "gamma": 0.1,
            "warmup_steps": 250,
            "warmup_ratio": 0.001,
            "b1": 0.9,
            "b2": 0.999,
            "weight_decay": 0.1,
            "layer_decay": layer_decay,
            "clip_norm": 0.0,
        },
        data={
            "source": "coco",
            "train_split": "train2017",
            "eval_split": "val2017",
            "img_size": 1024,
            "scale": (0.1, 2.0),
            "flip": 0.5,
            "masks": "polygons",
            "num_objects": 100,
            "num_edges": 2048,
            "num_polygons": 64,
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
        },
    )
    return detect.smoke(config) if args.smoke else config
