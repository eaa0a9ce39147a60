"""Blood cells: boxes of red and white cells and platelets in 364 photographs of 640 × 480 pixels (BCCD), on DINOv2.

python -m jaxprune.main --config=configs/dense/bccd.py[:small=true,wide=true] --config.data.path=BCCD \\
    --config.model.weights=FILE

BCCD is the directory of that name in https://github.com/Shenggan/BCCD_Dataset, PASCAL VOC's layout with lists of 292
images to train on and 72 to test on; FILE holds the weights of `vit_small_patch14_dinov2`. Images are resized to fit
560 × 560 pixels, a grid of 40 × 40; there are no masks. `--config.frozen=True` trains pyramid and heads alone. With
`small=true` that is what is done, at 280 × 280 pixels and with smaller heads, in half an hour on a CPU core
(docs/results.md has its results). A quarter of each square is padding: `wide=true` reads 560 × 420 pixels, 280 × 210
when small, which these photographs fill. To compare plans afterwards:

python -m jaxprune.main --config=configs/dense/bccd.py --config.detector=runs/bccd --config.data.source= \\
    --config.plans="('tome:r=20','topk@9:keep_rate=0.5,restore=last')" --config.rounds=5 --workdir=runs/bccd_plans
"""

from jaxprune.commands import detect
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, small=False, wide=False)
    config = detect.recipe(
        batch_size=4,
        steps=2000,
        dtype="float32",
        eval_every=500,
        checkpoint_every=200,
        frozen=False,
        model={"name": "vit_small_patch14_dinov2", "drop_path_rate": 0.1},
        head={
            "name": "mask_rcnn",
            "features": 128,
            "hidden": 256,
            "anchor_sizes": (16, 32, 64, 128, 256),
            "rpn_batch": 256,
            "roi_batch": 128,
            "before_nms": (500, 500),
            "after_nms": (250, 250),
            "min_score": 0.05,
            "overlap": 0.5,
            "max_detections": 100,
        },
        optimizer={
            "lr": 2e-4,
            "milestones": (8 / 9, 26 / 27),
            "gamma": 0.1,
            "warmup_steps": 100,
            "warmup_ratio": 0.001,
            "b1": 0.9,
            "b2": 0.999,
            "weight_decay": 0.1,
            "layer_decay": 0.7,
            "clip_norm": 1.0,
        },
        data={
            "source": "voc",
            "train_split": "trainval",
            "eval_split": "test",
            "img_size": 560,
            "scale": (0.5, 1.5),
            "flip": 0.5,
            "masks": "none",
            "num_objects": 64,
            "num_edges": 512,
            "num_polygons": 16,
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
        },
    )
    if args.small:
        _shrink(config)
    if args.wide:
        side = config.data.img_size
        config.data = {**config.data.to_dict(), "img_size": (side * 3 // 4, side)}
    return detect.smoke(config) if args.smoke else config


def _shrink(config):
    """Trains pyramid and heads on a frozen encoder, at half of the side."""
    config.update(batch_size=2, steps=900, frozen=True, eval_every=0, checkpoint_every=100)
    config.model.drop_path_rate = 0.0
    config.head.update(features=64, roi_batch=64, after_nms=(150, 150))
    config.optimizer.update(lr=4e-4, milestones=(0.75, 0.92), warmup_steps=50)
    config.data.update(img_size=280, scale=(0.75, 1.25))
