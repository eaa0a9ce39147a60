"""Small networks on small data, which learn something on two CPU cores: what several configs here have in common."""

from jaxprune.errors import unknown
from jaxprune.tasks import finetune, pretrain, quickstart, train_ranker

# Classifiers and encoders, by data.
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
    "epochs": 0.0,  # 0: those of RECIPES
    "finetune_epochs": 0.0,
}


def pretraining(args, **mim):
    """Returns one row of a pre-training table: pre-training, fine-tuning, training from scratch.

    Args:
      args: the arguments PRETRAINING and `smoke`, as `parse_arg` read them.
      mim: what the row changes of the framework.
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
    # A prepared Caltech-101 is one split.
    one_split = args.data == "caltech101" and args.source == "tfds"
    splits = {"train_split": "train[:67%]", "eval_split": "train[67%:]"} if one_split else {}
    for phase in (first, second):
        phase.data.update(source=args.source, path=args.path, img_size=encoder["img_size"], crop_scale=crop_scale)
        phase.data.update(splits)
        phase.update(batch_size=128, log_every=50, checkpoint_every=500)
    config = quickstart.defaults(first, second)
    config.seed = args.seed
    return quickstart.smoke(config) if args.smoke else config


# What a ranker, its autoencoder and a classifier on selected patches have in common, by data.
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
    "label_model": "",  # an autoencoder that is there already
    "epochs": 0.0,  # 0: the config's
    "mae_epochs": 0.0,
    "mask_ratio": 0.0,
    "throw": 0.0,
    "loss": "list_mle",
    "top_k": 5,  # places of the order that it looks at; 0: all, as published
}


def ranking(args, encoder, decoder, *, epochs, mae_epochs, mask_ratio, data):
    """Returns a ranker on small data, with the autoencoder that makes its labels.

    Args:
      args: the arguments RANKING and `smoke`, as `parse_arg` read them; those above 0 overrule what follows.
      encoder: the sizes of both networks.
      decoder: those of the autoencoder's decoder.
      epochs: of the ranker.
      mae_epochs: of the autoencoder.
      mask_ratio: of the labels; the autoencoder is trained with MAE's.
      data: what to change in `config.data` of both.
    """
    first = pretrain.defaults(
        {
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
    config.optimizer.update(base_lr=4e-3, warmup_epochs=0.05 * config.epochs)
    # So little training is spent best on what matters most: the encoder has seen the images already, and how patches
    # stand at the end of the order, where they are redundant, is chance.
    config.update(warm_start=True, loss=args.loss, loss_options={"top_k": args.top_k} if args.top_k else {})
    config.labels.update(mask_ratio=args.mask_ratio or mask_ratio, throw_ratio=args.throw)
    for phase in (first, config):
        phase.data.update(source=args.source, path=args.path, img_size=encoder["img_size"], **data)
        phase.update(batch_size=64, log_every=20, checkpoint_every=400)
    config.pretrain, config.mim = first, first.mim
    return train_ranker.smoke(config) if args.smoke else config
