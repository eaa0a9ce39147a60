"""TEC on ImageNet-1k (Gao et al., 2022): features and attention of a frozen teacher as targets; with PR-MIM.

python -m jaxprune.main --config=configs/mim/tec.py:of=ibot --config.teacher.weights=FILE
    --config.teacher.name=vit_base_patch16_224.dino

    of      type of teacher: ibot (9 queries, temperature 1.0) or mae (15 queries, 1.8)
    method  full, TEC as published; partial, which decodes some of the masked patches; or prmim (default)
    throw   share of the patches thrown (.5)            size    base, or large with a decoder of width 768
    epochs  300 as published

The teacher is a published file (`teacher.weights`, for the network `teacher.name`), such as DINOv2's
`vit_small_patch14_dinov2`, or a run directory (`teacher.run`). It sees the same images, resized so that it has as many
patches as the student; predictions have the width of the teacher. The teacher is stored with the run.

Published top-1 of ViT-B after fine-tuning, iBOT as the teacher, 300 epochs (PR-MIM Tab. 4): TEC 84.8, partial .5 84.5,
PR-MIM .5 84.7. Cost of PR-MIM .5 relative to TEC, without the teacher: 0.82 of the FLOPs in that table, 0.84 as counted
here, with heads and aggregation on all patches. A ViT-B teacher costs 17.6 GFLOPs per image, in addition to TEC's 8.3
(forward). Fine-tuning: configs/mim/imagenet_finetune.py:framework=tec,after=ibot-300 (or mae-300, …).

Needs the TFDS data set `imagenet2012` prepared as ArrayRecord, or --config.data.source=folder and --config.data.path.
"""

from jaxprune.commands import pretrain
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

RECONSTRUCTION = {"full": "full", "partial": "partial", "prmim": "progressive"}
# queries and temperature of the attention
TEACHERS = {"ibot": (9, 1.0), "mae": (15, 1.8)}
DECODERS = {"base": 512, "large": 768}


def get_config(arg=None):
    args = parse_arg(arg, of="ibot", method="prmim", throw=0.5, size="base", epochs=300)
    for thing, value, choices in (
        ("method", args.method, RECONSTRUCTION),
        ("size", args.size, DECODERS),
        ("teacher", args.of, TEACHERS),
    ):
        if value not in choices:
            raise unknown(thing, value, choices)
    num_queries, att_tau = TEACHERS[args.of]
    config = pretrain.recipe(
        batch_size=4096,
        epochs=float(args.epochs),
        dtype="bfloat16",
        checkpoint_every=1000,
        flip=True,
        mim={
            "name": "tec",
            "encoder": f"vit_{args.size}_patch16_224",
            "decoder_embed_dim": DECODERS[args.size],
            "decoder_depth": 2,
            "decoder_num_heads": 16,
            "mask_ratio": 0.75,
            "num_queries": num_queries,  # patches whose attention is predicted, in addition to that of the CLS token
            "att_tau": att_tau,  # divides the logits of the teacher's attention
            "num_adaptors": None,  # None: one for every three blocks
            "reconstruction": RECONSTRUCTION[args.method],
            "throw_ratio": 0.0 if args.method == "full" else args.throw,
            "retain": "furthest",
            "kernel_size": 7,
            "aggregation": "thrown",
            "remat": False,
        },
        optimizer={
            "name": "adamw",
            "base_lr": 1.5e-4,
            "lr_norm": 256,
            "b1": 0.9,
            "b2": 0.95,
            "weight_decay": 0.05,
            "clip_norm": 0.0,
            "warmup_epochs": 40.0,
            "warmup_lr": 0.0,
            "min_lr": 0.0,
            "cosine_from_start": False,
            "milestones": (),
        },
        data={
            "source": "tfds",
            "name": "imagenet2012",
            "eval_split": "validation",
            "img_size": 224,
            "crop": "random_resized",
            "crop_scale": (0.2, 1.0),
            "eval_crop": "center",
            "crop_pct": 0.875,
            "interpolation": "bicubic",
            "randaugment": "",
            "cutout": 0.0,
            "repeats": 1,
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
        },
    )
    return pretrain.smoke(config) if args.smoke else config
