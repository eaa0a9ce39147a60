"""LTRP's ranker on ImageNet-1k: Tab. 3.

python -m jaxprune.main --config=configs/ranking/imagenet.py:mae=base,size=small,label_model=mae_visualize_vit_base.pth

    mae          base, large or huge: the autoencoder that makes the labels
    size         tiny, small or base: the ranker
    label_model  weights of the autoencoder with its decoder, trained without normalised pixels (MAE's "visualize"
                 checkpoints), or a run directory, such as that of configs/mim/imagenet.py:method=mae with
                 --config.mim.norm_pix_loss=False
    throw        share of the patches left out of every reconstruction: 0 as in the paper; .65 is three times cheaper

Tab. 3: mask ratio .9, 400 epochs, weight decay .06, ListMLE, MAE ViT-B and a ViT-S ranker; the rest is MAE's recipe
(batch 4096, base learning rate 1.5e-4 for 256 images, 40 epochs of warm-up). Making the labels of an image takes 19
decoder passes, 100 G multiply-accumulates; a forward pass of the ViT-S ranker takes 4.6 G.

Needs the TFDS data set `imagenet2012` prepared as ArrayRecord, or --config.data.source=folder and --config.data.path.
"""

from jaxprune.commands import pretrain, train_ranker
from jaxprune.config import parse_arg
from jaxprune.errors import unknown

PATCH = {"base": 16, "large": 16, "huge": 14}


def get_config(arg=None):
    args = parse_arg(arg, mae="base", size="small", label_model="", throw=0.0)
    if args.mae not in PATCH:
        raise unknown("autoencoder", args.mae, PATCH)
    if args.size not in ("tiny", "small", "base"):
        raise unknown("size of a ranker", args.size, ("tiny", "small", "base"))
    config = train_ranker.recipe(
        label_model=args.label_model,
        batch_size=4096,
        epochs=400.0,
        dtype="bfloat16",
        checkpoint_every=1000,
        flip=True,
        mim={
            "name": "mae",
            "encoder": f"vit_{args.mae}_patch{PATCH[args.mae]}_224",
            "decoder_embed_dim": 512,
            "decoder_depth": 8,
            "decoder_num_heads": 16,
            "norm_pix_loss": False,
        },
        expects="full",
        ranker={"name": f"vit_{args.size}_patch{PATCH[args.mae]}_224", "remat": False},
        warm_start=False,
        sparse=True,
        labels={
            "mask_ratio": 0.9,
            "throw_ratio": args.throw,
            "removal": "delete",
            "over": "masked",
            "memory_mib": 16_384.0,
        },
        loss="list_mle",
        optimizer={
            "name": "adamw",
            "base_lr": 1.5e-4,
            "lr_norm": 256,
            "b1": 0.9,
            "b2": 0.95,
            "weight_decay": 0.06,
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
    if args.smoke:
        # There is no autoencoder to make labels with, so pre-train one.
        config.pretrain = pretrain.defaults()
        config.pretrain.mim.update(norm_pix_loss=False, reconstruction="full", throw_ratio=0.0)
        return train_ranker.smoke(config)
    return config
