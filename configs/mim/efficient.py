"""Masked pre-training on pictures of your own: most patches masked, a shallow decoder, and whether it helped.

python -m jaxprune.main --config=configs/mim/efficient.py:path=DIR,minutes=3   # a few hundred pictures
python -m jaxprune.main --config=configs/mim/efficient.py:path=DIR             # ViT-S, hours without a GPU

DIR holds one directory of images per class, or train/<class>/ and test/<class>/, or, with `:labels=false`, images
without classes, on which the network is only pre-trained, on all of them.

    minutes  time of training; start, compilation, evaluation and the report come on top. Network, image size and
             number of steps follow from it and from the pictures. The run pre-trains, fine-tunes, and trains the same
             network from scratch; then it times a step of PR-MIM against one of the full MAE (`step_rounds`)
    size     tiny or small; by default as `minutes` allows
    scratch  equal: as long as pre-training and fine-tuning together; steps: as many steps as fine-tuning

Without `minutes` a ViT-S sees 19 of 196 patches at mask ratio .9, the decoder has two blocks, and half of all patches
are thrown and reconstructed by PR-MIM. `:model=vit_tiny_patch16_224` and `:epochs=N` change the network and the number
of epochs.
"""

import _own_pictures
import _small

from jaxprune.commands import finetune, pretrain, quickstart
from jaxprune.config import parse_arg
from jaxprune.errors import unknown


def get_config(arg=None):
    args = parse_arg(
        arg,
        path="",
        source="folder",
        labels=True,
        model="vit_small_patch16_224",
        epochs=50.0,
        batch=64,
        minutes=0.0,
        size="",
        scratch="equal",
    )
    if args.minutes or args.size:
        return in_minutes(args)
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
    config = quickstart.defaults(pretrain=first, finetune=second, scratch_time=args.scratch)
    return quickstart.smoke(config) if args.smoke else config


def in_minutes(args):
    """The same with a small network, for a number of minutes: a third or all of them for pre-training."""
    minutes = args.minutes or 3.0
    size = args.size or _own_pictures.size_for(minutes)
    sizes = _own_pictures.network(size, "" if args.smoke or args.source != "folder" else args.path)
    # With labels, as long again from scratch as pre-training and fine-tuning take together, or as fine-tuning.
    shares = {"equal": (1 / 3, 1 / 6), "steps": (1 / 2, 1 / 4)}
    if args.scratch not in shares:
        raise unknown("scratch", args.scratch, shares)
    of_pretraining, of_finetuning = shares[args.scratch] if args.labels else (1.0, 0.0)
    data = {"source": args.source, "path": args.path, "labels": args.labels, "img_size": sizes["img_size"]}
    # Steps set the length, since epochs of so few pictures are short: the schedule of one epoch stretches to them.
    common = {"epochs": 1.0, "batch_size": 32, "log_every": 20, "checkpoint_every": 400}
    first = pretrain.defaults(**common, steps=_own_pictures.steps(size, of_pretraining * minutes))
    first.mim = {**_small.PR_MIM, **sizes, **_own_pictures.DECODERS[size], "norm_pix_loss": False}
    first.data.update(**data, crop_scale=(0.35, 1.0))
    first.update(max_minutes=of_pretraining * minutes, picture_every=0)
    first.optimizer.update(base_lr=1.2e-2, warmup_epochs=0.1)
    if not args.labels:
        return pretrain.smoke(first) if args.smoke else first
    second = finetune.defaults(**common, steps=_own_pictures.steps(size, of_finetuning * minutes, classifies=True))
    second.model = {**second.model.to_dict(), **sizes, "name": "vit", "drop_path_rate": 0.0}
    second.data.update(**data, crop_scale=(0.35, 1.0))
    second.update(max_minutes=of_finetuning * minutes)
    second.optimizer.update(base_lr=1.2e-2, warmup_epochs=0.15, layer_decay=0.8)
    second.augment.update(erasing=0.0, mixup=0.0, cutmix=0.0, label_smoothing=0.1)
    scratch = {"base_lr": 3e-3, "layer_decay": 1.0}
    phases = {"pretrain": first, "finetune": second, "scratch": scratch, "scratch_time": args.scratch}
    config = quickstart.defaults(**phases, step_rounds=5)
    return quickstart.smoke(config) if args.smoke else config
