"""The settings of a ranker's training: LTRP Tab. 3, what it does not list from MAE's recipe."""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune.checkpoints.label_model import open_label_model
from jaxprune.config import Config
from jaxprune.nn.params import Split
from jaxprune.ranking.loss import ranking_loss
from jaxprune.tasks.pretrain import settings as pretraining
from jaxprune.tasks.setup import checks, inputs
from jaxprune.tasks.setup import defaults as shared

PRETRAIN = "pretrain"  # the directory, inside of the run's, of the autoencoder that it pre-trains

# The autoencoder that makes the labels, as `config.mim` has it.
LABEL_MODEL = {**pretraining.NETWORKS, "norm_pix_loss": False}


def defaults() -> Config:
    """Returns the defaults of the task.

    With `config.pretrain`, a config of the task `pretrain`, the autoencoder is pre-trained first.
    """
    return ConfigDict(
        {
            **shared.training("train_ranker"),
            # The masked autoencoder that makes the labels: a run directory, or a weights file of the network `mim`.
            # Empty: one that is pre-trained first, by the config in `pretrain`.
            "label_model": "",
            "mim": LABEL_MODEL,
            "expects": "full",  # how it learnt to reconstruct; another than this is warned about
            "ranker": {"name": "vit_small_patch16_224", "remat": False},
            "warm_start": False,  # the ranker begins as the autoencoder's encoder, which has to be of its sizes
            "sparse": True,  # the ranker is trained on the visible patches only
            "labels": {
                "mask_ratio": 0.9,
                "throw_ratio": 0.0,  # share of the patches that no reconstruction has: cheaper, and no longer exact
                "removal": "delete",
                "over": "masked",
                "memory_mib": 2048.0,  # that making them may take on a device
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
        config.label_model or workdir / PRETRAIN,
        config.mim.to_dict(),
        inputs.preprocessing(config),
        dtype=config.dtype,
        expects=config.expects,
    )


def label_options(config: Config) -> dict[str, Any]:
    """Returns the arguments of `pseudo_labels` that `config.labels` stands for."""
    options = config.labels.to_dict()
    options["memory"] = int(options.pop("memory_mib") * 2**20)
    return options


def check(config: Config) -> list[str]:
    """Returns what is wrong with the loss."""
    return checks.refused(lambda: ranking_loss(config.loss, **config.loss_options))


def missing(config: Config) -> list[str]:
    """Returns that there is nothing to make the labels with, if so."""
    if config.label_model or "pretrain" in config:
        return []
    return [
        "Nothing makes the labels: give --config.label_model=RUN, a pre-training run of ours or a weights file of "
        "the network config.mim."
    ]
