"""The settings of masked pre-training: the recipe of PR-MIM Tab. 13."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxprune import models
from jaxprune.commands.pretrain import frozen_networks as networks
from jaxprune.commands.shared import defaults as shared
from jaxprune.config import Config

# `config.mim` for MAE's networks, and PR-MIM on them.
NETWORKS = {
    "name": "mae",
    "encoder": "vit_base_patch16_224",
    "decoder_embed_dim": 512,
    "decoder_depth": 8,
    "decoder_num_heads": 16,
}
PR_MIM = {
    **NETWORKS,
    "mask_ratio": 0.75,
    "norm_pix_loss": True,
    "reconstruction": "progressive",
    "throw_ratio": 0.5,
    "retain": "furthest",
    "kernel_size": 7,
    "aggregation": "thrown",
    "remat": False,
}
# The teacher in a smoke run, as a recipe for `mim.create`: an untrained network.
TINY_NETWORK = ("model", tuple({"name": "vit", **shared.TINY, "num_classes": 0}.items()))


def defaults(mim: Mapping[str, Any] = PR_MIM) -> Config:
    """Returns the defaults of the task.

    Args:
      mim: `config.mim`, the name and the arguments of a framework.
    """
    return ConfigDict(
        {
            **shared.training("pretrain"),
            "mim": dict(mim),
            "optimizer": shared.adamw(base_lr=1.5e-4, b2=0.95, weight_decay=0.05, warmup_epochs=40.0),
            "flip": True,
            "picture_every": 500,
            **{name: dict(networks.SOURCE) for name in networks.names(mim)},
        }
    )


def smoke(config: Config) -> Config:
    """Shrinks a config of the task to run in seconds on a CPU, on built-in data."""
    shared.shrink(config)
    config.mim = tiny(config.mim)
    config.picture_every = 2
    for name in networks.names(config.mim):
        config.mim[name] = TINY_NETWORK
        config[name] = dict(networks.SOURCE)
    return config


def tiny(mim: Config) -> dict[str, Any]:
    """Returns `config.mim` with the sizes of a smoke run."""
    own = {"decoder_embed_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2, "mask_patch": 8}
    # Arguments of most frameworks; others have another kind of decoder and masks.
    own = {name: size for name, size in own.items() if name in mim}
    swin = "encoder" in mim and mim.encoder and models.module_of(mim.encoder) == "swin"
    encoder = {**shared.TINY_STAGES, "encoder": "swin"} if swin else {**shared.TINY, "encoder": ""}
    return {**mim.to_dict(), **encoder, **own}
