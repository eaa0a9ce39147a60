"""Masked pre-training on a small data set of your own: most patches masked, a shallow decoder, few epochs.

python -m jaxprune.main --config=configs/mim/efficient.py:path=DIR

DIR holds train/<class>/ and test/<class>/ images or, with `:labels=false`, images without classes, on which the network
is only pre-trained. At mask ratio .9 a ViT-S sees 19 of 196 patches, the decoder has two blocks, and half of all
patches are thrown and reconstructed by PR-MIM. `:model=vit_tiny_patch16_224` and `:epochs=N` change the network and the
number of epochs.
"""

import _small

from jaxprune.commands import finetune, pretrain, quickstart
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg, path="", source="folder", labels=True, model="vit_small_patch16_224", epochs=50.0, batch=64)
    common = {
        "batch_size": args.batch,
        "dtype": "float32",
        "data": {
            "source": args.source,
            "path": args.path,
            "labels": args.labels,
            **_small.IMAGES,
            "img_size": 224,
            "crop_scale": (0.2, 1.0),
        },
    }
    first = pretrain.recipe(
        **common,
        epochs=args.epochs,
        flip=True,
        mim={
            **_small.PR_MIM,
            "encoder": args.model,
            "decoder_embed_dim": 256,
            "decoder_depth": 2,
            "decoder_num_heads": 8,
            "mask_ratio": 0.9,
        },
        optimizer={**_small.PRETRAIN_OPTIMIZER, "base_lr": 1e-3, "warmup_epochs": 0.1 * args.epochs},
    )
    second = finetune.recipe(
        **common,
        epochs=0.4 * args.epochs,
        loss="cross_entropy",
        ema_decay=0.0,
        model={**_small.CLASSIFIER, "name": args.model, "drop_path_rate": 0.1},
        optimizer={
            **_small.FINETUNE_OPTIMIZER,
            "base_lr": 1e-3,
            "warmup_epochs": 0.04 * args.epochs,
            "layer_decay": 0.75,
        },
        augment={**_small.AUGMENT, "erasing": 0.25, "mixup": 0.8, "cutmix": 1.0},
    )
    if not args.labels:
        return pretrain.smoke(first) if args.smoke else first
    config = quickstart.defaults(pretrain=first, finetune=second)
    return quickstart.smoke(config) if args.smoke else config
