"""Small networks for small data sets, trainable on two CPU cores; shared by several configs."""

from jaxprune.commands import finetune, pretrain, quickstart, train_ranker
from jaxprune.errors import unknown

# Classifiers and encoders by data set.
NETWORKS = {
    "cifar10": {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 4, "num_heads": 3},
    "caltech101": {"img_size": 64, "patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 3},
}
DECODERS = {
    "cifar10": {"decoder_embed_dim": 64, "decoder_depth": 2, "decoder_num_heads": 4},
    "caltech101": {"decoder_embed_dim": 96, "decoder_depth": 2, "decoder_num_heads": 4},
}
# Epochs of pre-training and of fine-tuning, and the area of the random crops.
RECIPES = {"cifar10": (20.0, 10.0, (0.6, 1.0)), "caltech101": (60.0, 20.0, (0.35, 1.0))}
RECONSTRUCTION = {"mae": "full", "partial": "partial", "prmim": "progressive"}

# The recipe of PR-MIM Tab. 13 and 14, from which the small runs differ where they say so.
PR_MIM = {
    "name": "mae",
    "encoder": "",
    "mask_ratio": 0.75,
    "norm_pix_loss": True,
    "reconstruction": "progressive",
    "throw_ratio": 0.5,
    "retain": "furthest",
    "kernel_size": 7,
    "aggregation": "thrown",
    "remat": False,
}
PRETRAIN_OPTIMIZER = {
    "name": "adamw",
    "lr_norm": 256,
    "b1": 0.9,
    "b2": 0.95,
    "weight_decay": 0.05,
    "clip_norm": 0.0,
    "warmup_lr": 0.0,
    "min_lr": 0.0,
    "cosine_from_start": False,
    "milestones": (),
}
FINETUNE_OPTIMIZER = {
    **PRETRAIN_OPTIMIZER,
    "b2": 0.999,
    "min_lr": 1e-6,
    "backbone_scale": 1.0,
    "freeze_epochs": 0.0,
}
CLASSIFIER = {"name": "vit", "global_pool": "avg", "drop_path_rate": 0.0, "head_init_scale": 1e-3}
AUGMENT = {"flip": True, "erasing": 0.0, "mixup": 0.0, "cutmix": 0.0, "label_smoothing": 0.1}
IMAGES = {
    "crop": "random_resized",
    "eval_crop": "center",
    "crop_pct": 0.875,
    "interpolation": "bicubic",
    "randaugment": "",
    "cutout": 0.0,
    "repeats": 1,
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}

# Arguments of `pretraining`, with their defaults.
PRETRAINING = {
    "data": "cifar10",
    "source": "folder",
    "path": "",
    "seed": 0,
    "epochs": 0.0,  # 0: as in RECIPES
    "finetune_epochs": 0.0,
}


def pretraining(args, **mim):
    """Returns the config for one row of a pre-training table: pre-training, fine-tuning, training from scratch.

    Args:
      args: the arguments PRETRAINING and `smoke`, as parsed by `parse_arg`.
      mim: the settings of the framework that this row changes.
    """
    if args.data not in NETWORKS:
        raise unknown("data", args.data, NETWORKS)
    encoder, decoder = NETWORKS[args.data], DECODERS[args.data]
    epochs, finetune_epochs, crop_scale = RECIPES[args.data]
    epochs, finetune_epochs = args.epochs or epochs, args.finetune_epochs or finetune_epochs
    # Caltech-101, prepared by jaxprune-prepare, has a single split.
    one_split = args.data == "caltech101" and args.source == "tfds"
    splits = {"train_split": "train[:67%]", "eval_split": "train[67%:]"} if one_split else {}
    common = {
        "batch_size": 128,
        "dtype": "float32",
        "log_every": 50,
        "checkpoint_every": 500,
        "data": {
            "source": args.source,
            "path": args.path,
            **splits,
            **IMAGES,
            "img_size": encoder["img_size"],
            "crop_scale": crop_scale,
        },
    }
    first = pretrain.recipe(
        **common,
        epochs=epochs,
        flip=True,
        mim={**PR_MIM, **encoder, **decoder, "aggregator": "depthwise", **mim},
        optimizer={**PRETRAIN_OPTIMIZER, "base_lr": 3e-3, "warmup_epochs": 0.1 * epochs},
    )
    second = finetune.recipe(
        **common,
        epochs=finetune_epochs,
        loss="cross_entropy",
        ema_decay=0.0,
        model={**CLASSIFIER, **encoder},
        optimizer={
            **FINETUNE_OPTIMIZER,
            "base_lr": 3e-3,
            "warmup_epochs": 0.1 * finetune_epochs,
            "layer_decay": 0.8,
        },
        augment=AUGMENT,
    )
    config = quickstart.defaults(pretrain=first, finetune=second, seed=args.seed)
    return quickstart.smoke(config) if args.smoke else config


# The sizes shared by a ranker, its autoencoder and a classifier on selected patches, by data set.
RANKED = {
    "scenes": {"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 4, "num_heads": 3},
    "cifar10": {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 4, "num_heads": 3},
    "caltech101": {"img_size": 112, "patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 3},
}

# Arguments of `ranking`, with their defaults.
RANKING = {
    "source": "folder",
    "path": "",
    "seed": 0,
    "label_model": "",  # an autoencoder that is already trained
    "epochs": 0.0,  # 0: as in the config
    "mae_epochs": 0.0,
    "mask_ratio": 0.0,
    "throw": 0.0,
    "loss": "list_mle",
    "top_k": 5,  # top ranks that the loss takes into account; 0: all, as published
}


def ranking(args, encoder, decoder, *, epochs, mae_epochs, mask_ratio, data, batch_size=64, base_lr=4e-3):
    """Returns the config of a ranker on small data, with the autoencoder that makes its labels.

    Args:
      args: the arguments RANKING and `smoke`, as parsed by `parse_arg`; values above 0 override the arguments below.
      encoder: sizes of both encoders.
      decoder: sizes of the autoencoder's decoder.
      epochs: epochs of the ranker.
      mae_epochs: epochs of the autoencoder.
      mask_ratio: mask ratio of the labels; the autoencoder is trained with MAE's.
      data: settings to change in `config.data` of both.
      batch_size, base_lr: of the ranker; the autoencoder's batch size is 64.
    """
    first = pretrain.defaults(
        mim={
            "name": "mae",
            "mask_ratio": 0.75,
            "norm_pix_loss": False,
            "reconstruction": "full",
            "throw_ratio": 0.0,
            **encoder,
            **decoder,
        }
    )
    first.epochs = args.mae_epochs or mae_epochs
    first.optimizer.update(base_lr=6e-3, warmup_epochs=0.05 * first.epochs)
    config = train_ranker.defaults()
    config.update(label_model=args.label_model, ranker={"name": "vit", **encoder}, seed=args.seed)
    config.epochs = args.epochs or epochs
    config.optimizer.update(base_lr=base_lr, warmup_epochs=0.05 * config.epochs)
    # With so little training, start from the autoencoder's encoder, and leave the end of the order out of the loss: the
    # patches there are redundant and their order is random.
    config.update(warm_start=True, loss=args.loss, loss_options={"top_k": args.top_k} if args.top_k else {})
    config.labels.update(mask_ratio=args.mask_ratio or mask_ratio, throw_ratio=args.throw)
    for phase in (first, config):
        phase.data.update(source=args.source, path=args.path, img_size=encoder["img_size"], **data)
        phase.update(log_every=20, checkpoint_every=400)
    first.batch_size, config.batch_size = 64, batch_size
    config.pretrain, config.mim = first, first.mim
    return train_ranker.smoke(config) if args.smoke else config
