"""SegViT on ADE20K with ViT-B, 160,000 steps of 16 windows: the segmentation network behind PaPr Tab. I.

python -m jaxprune.main --config=configs/dense/segvit.py --config.model.weights=FILE --config.data.path=TFDS_DIRECTORY

The encoder starts from ViT-B/16 of ImageNet-21k (AugReg); its maps after half, two thirds and all of the blocks go
through a cascade of three decoders. The data are those of configs/dense/ade20k.py. `--config.plan=TEXT` trains under
a token-reduction plan, and
`--config.segmenter=runs/segvit --config.plans="('tome:keep_rate=0.7',)"` tests a trained network under plans.

    dtop   true: DToP, an independent decoder at each of the three depths, and exits of tokens that are sure of their
           class from .9 on, without the five best of each class; the test counts GFLOPs by the tokens that go on
    papr   true: with DToP, PaPr's map in place of confidence: the half of the patches with the highest scores go on
           behind the first decoder, a quarter behind the second; give --config.scorer=papr:run=RUN, a ConvNet
           classifier such as that of configs/ranking/proposal.py

Published mIoU at GFLOPs of 512 pixels: SegViT with its cascade 51.3 at 120.9; the dense network of PaPr Tab. I, which
has one decoder, 49.6 at 110; DToP 49.8 at 86.8, with PaPr 49.9 at 70. Not repeated here; which patches PaPr keeps
there is not published. DToP starts from a trained network, for 40,000 steps, with ten times the rate in its heads,
which this config has not. The learning rate, its decay and the weight decay are those of DToP's published code; the
normalisation is a choice of this config: the papers, as far as they were read, do not state it.
"""

from jaxprune.commands import segment
from jaxprune.config import parse_arg
from jaxprune.errors import UserError


def get_config(arg=None):
    args = parse_arg(arg, dtop=False, papr=False)
    if args.papr and not args.dtop:
        raise UserError("papr=true puts PaPr in the place of DToP's confidence: write dtop=true,papr=true.")
    exits = {
        "name": "dtop",
        "exits": "scores" if args.papr else "confidence",
        "thresholds": 0.9,
        "keep_per_class": 5,
        "keep_rates": (0.5, 0.25) if args.papr else 1.0,
        "head_heads": 6,
    }
    config = segment.recipe(
        batch_size=16,
        steps=160_000,
        dtype="bfloat16",
        eval_every=16_000,
        checkpoint_every=1000,
        frozen=False,
        valid_only=False,
        model={"name": "vit_base_patch16_224", "drop_path_rate": 0.1},
        head={
            "name": "segvit",
            "indices": (5, 7, 11),
            "features": 384,
            "head_heads": 12,
            "layers": 3,
            "dropout": 0.1,
            "absent_weight": 0.1,
            "class_weight": 1.0,
            "mask_weight": 20.0,
            "dice_weight": 1.0,
            **(exits if args.dtop else {}),
        },
        plan="from_scores:keep_rate=1.0" if args.papr else "",
        scorer="papr" if args.papr else "",
        optimizer={
            "name": "adamw",
            "lr": 2e-5,
            "power": 0.9,
            "min_lr": 0.0,
            "warmup_steps": 1500,
            "warmup_ratio": 1e-6,
            "b1": 0.9,
            "b2": 0.999,
            "weight_decay": 0.01,
            "layer_decay": 1.0,
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
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
        },
        test={"mode": "slide", "stride": (341, 341), "flip": False, "scales": (1.0,)},
    )
    return segment.smoke(config) if args.smoke else config
