"""The settings of a ranker's training: LTRP Tab. 3, and MAE's recipe for what the table does not list."""

from pathlib import Path
from typing import Any

from jaxprune.commands.pretrain import settings as pretraining
from jaxprune.commands.shared import groups, inputs
from jaxprune.commands.shared.settings import ABSENT, choice, number, path, record, refused, setting
from jaxprune.config import Config
from jaxprune.nn.params import Split
from jaxprune.open import at, open_label_model
from jaxprune.ranking.labels import METRICS, OVER, REMOVALS
from jaxprune.ranking.losses_by_name import ranking_loss

PRETRAIN = "pretrain"  # subdirectory of the run with the autoencoder that it pre-trains


@record(recipe=True, is_open=True)
class Ranker(groups.Sizes):
    """`config.ranker`: the name and the arguments of the network."""

    name: str = setting("vit_small_patch16_224", "a ViT, or a ConvNet")
    remat: bool = setting(ABSENT, "recompute activations in the backward pass, to save memory")
    per_patch: bool = setting(ABSENT, "score each patch from its own token, for a small ranker", free=True)


@record(recipe=True)
class Labels:
    """`config.labels`: how the autoencoder ranks patches."""

    mask_ratio: float = number(0.9, "share of the patches that the autoencoder does not see", above=0, below=1)
    throw_ratio: float = number(0.0, "share not reconstructed: cheaper, but no longer exact", at_least=0, below=1)
    removal: str = choice("delete", "how a visible patch is removed", REMOVALS)
    over: str = choice("masked", "patches whose reconstruction counts", OVER)
    metric: str = choice("l1", "or ssim, psnr: of whole images, with removal=attention", METRICS, free=True)
    memory_mib: float = number(2048.0, "memory limit per device for computing the labels", above=0, free=True)


@record(is_open=True)
class LossOptions:
    """`config.loss_options`: options of the loss, such as `top_k`."""


@record(recipe=True)
class Settings(groups.Recipe):
    """A ranker, the autoencoder that makes its labels, and images to train on.

    With `config.pretrain`, a config of `pretrain`, the autoencoder is pre-trained first.
    """

    FIRST = (
        *("data.source", "data.path", "label_model", "ranker.name", "epochs"),
        *("max_minutes", "batch_size", "data.img_size", "labels.mask_ratio", "optimizer.base_lr"),
    )

    label_model: str = path("", "run directory, or weights of `mim`, that makes the labels; empty: that of `pretrain`")
    mim: pretraining.Framework = pretraining.Framework(**pretraining.NETWORKS, norm_pix_loss=False)
    expects: str = setting("full", "the reconstruction it was trained with; there is a warning if it differs")
    ranker: Ranker = Ranker(remat=False)
    warm_start: bool = setting(False, "start the ranker from the autoencoder's encoder, which has the same sizes")
    sparse: bool = setting(True, "train the ranker on the visible patches only")
    labels: Labels = Labels()
    loss: str = setting("list_mle", "loss of the ranking")
    loss_options: LossOptions = LossOptions()
    optimizer: groups.Optimizer = groups.Optimizer(base_lr=1.5e-4, weight_decay=0.06, warmup_epochs=40.0)
    flip: bool = setting(True, "horizontal flips")

    @staticmethod
    def check(config: Config, prefix: str) -> list[str]:
        """Returns the problems of the loss."""
        return refused(lambda: ranking_loss(config.loss, **config.loss_options))

    @staticmethod
    def missing(config: Config) -> list[str]:
        """Returns a message if there is no model to make the labels with."""
        if config.label_model or PRETRAIN in config:
            return []
        return [
            "There is no model for the labels: give --config.label_model=RUN, a jaxprune pre-training run or weights "
            "of the network config.mim."
        ]


def smoke(config: Config) -> Config:
    """Shrinks a config of the command to run in seconds on a CPU, on built-in data."""
    groups.shrink(config)
    config.mim = pretraining.tiny(config.mim)
    config.ranker = {**config.ranker.to_dict(), **groups.TINY, "name": "vit"}
    config.labels.update(mask_ratio=0.5, throw_ratio=min(config.labels.throw_ratio, 0.25))
    if PRETRAIN in config:
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
