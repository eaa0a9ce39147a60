"""The settings of a ranker's training: LTRP Tab. 3, and MAE's recipe for what the table does not list."""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune.commands.pretrain import settings as pretraining
from jaxprune.commands.shared import checks, inputs
from jaxprune.commands.shared import defaults as shared
from jaxprune.config import Config
from jaxprune.nn.params import Split
from jaxprune.open import at, open_label_model
from jaxprune.ranking.losses import ranking_loss

PRETRAIN = "pretrain"  # subdirectory of the run with the autoencoder that it pre-trains

# `config.mim` of the autoencoder that makes the labels.
LABEL_MODEL = {**pretraining.NETWORKS, "norm_pix_loss": False}


def defaults() -> Config:
    """Returns the defaults of the task.

    With `config.pretrain`, a config of the task `pretrain`, the autoencoder is pre-trained first.
    """
    return ConfigDict(
        {
            **shared.training("train_ranker"),
            # The masked autoencoder that makes the labels: a run directory, or a weights file of the network `mim`.
            # Empty: one is pre-trained first, by the config in `pretrain`.
            "label_model": "",
            "mim": LABEL_MODEL,
            "expects": "full",  # the reconstruction it was trained with; there is a warning if it differs
            "ranker": {"name": "vit_small_patch16_224", "remat": False},
            "warm_start": False,  # initialise the ranker with the autoencoder's encoder, which must have the same sizes
            "sparse": True,  # train the ranker on the visible patches only
            "labels": {
                "mask_ratio": 0.9,
                "throw_ratio": 0.0,  # fraction of the patches that are not reconstructed: cheaper, but no longer exact
                "removal": "delete",
                "over": "masked",
                "memory_mib": 2048.0,  # memory limit per device for computing the labels
            },
            "loss": "list_mle",
            "loss_options": {},
            "optimizer": shared.adamw(base_lr=1.5e-4, b2=0.95, weight_decay=0.06, warmup_epochs=40.0),
            "flip": True,
        }
    )


def smoke(config: Config) -> Config:
    """Shrinks a config of the task to run in seconds on a CPU, on built-in data."""
    shared.shrink(config)
    config.mim = pretraining.tiny(config.mim)
    config.ranker = {**config.ranker.to_dict(), **shared.TINY, "name": "vit"}
    config.labels.mask_ratio = 0.5
    if "pretrain" in config:
        pretraining.smoke(config.pretrain)
    return config


def label_model(config: Config, workdir: Path) -> Split:
    """Opens the autoencoder that makes the labels: `config.label_model`, or the one pre-trained in `workdir`."""
    return open_label_model(
        at(config.label_model or workdir / PRETRAIN),
        config.mim.to_dict(),
        inputs.preprocessing(config),
        dtype=config.dtype,
        expects=config.expects,
    )


def label_options(config: Config) -> dict[str, Any]:
    """Returns the arguments of `pseudo_labels` from `config.labels`."""
    options = config.labels.to_dict()
    options["memory"] = int(options.pop("memory_mib") * 2**20)
    return options


def check(config: Config) -> list[str]:
    """Returns the problems of the loss."""
    return checks.refused(lambda: ranking_loss(config.loss, **config.loss_options))


def missing(config: Config) -> list[str]:
    """Returns a message if there is no model to make the labels with."""
    if config.label_model or "pretrain" in config:
        return []
    return [
        "There is no model for the labels: give --config.label_model=RUN, a jaxprune pre-training run or weights of "
        "the network config.mim."
    ]
