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
    first = pretrain.defaults()
    first.mim = {**first.mim.to_dict(), **encoder, **decoder, "encoder": "", "aggregator": "depthwise", **mim}
    first.epochs = args.epochs or epochs
    first.optimizer.update(base_lr=3e-3, warmup_epochs=0.1 * first.epochs)
    second = finetune.defaults()
    second.model = {**second.model.to_dict(), **encoder, "name": "vit", "drop_path_rate": 0.0}
    second.epochs = args.finetune_epochs or finetune_epochs
    second.optimizer.update(base_lr=3e-3, warmup_epochs=0.1 * second.epochs, layer_decay=0.8)
    second.augment.update(erasing=0.0, mixup=0.0, cutmix=0.0)
    # Caltech-101, prepared by jaxprune-prepare, has a single split.
    one_split = args.data == "caltech101" and args.source == "tfds"
    splits = {"train_split": "train[:67%]", "eval_split": "train[67%:]"} if one_split else {}
    for phase in (first, second):
        phase.data.update(source=args.source, path=args.path, img_size=encoder["img_size"], crop_scale=crop_scale)
        phase.data.update(splits)
        phase.update(batch_size=128, log_every=50, checkpoint_every=500)
    config = quickstart.defaults(pretrain=first, finetune=second)
    config.seed = args.seed
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
