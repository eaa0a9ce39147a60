"""The settings of masked pre-training: the recipe of PR-MIM Tab. 13."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxprune import mim, models
from jaxprune.commands.shared import groups
from jaxprune.commands.shared.settings import ABSENT, choice, number, record, setting
from jaxprune.config import Config


@record(is_open=True)
class Framework(groups.Sizes):
    """`config.mim`: the name and the arguments of a framework, whose class documents them."""

    name: str = choice("mae", "a framework of masked pre-training", mim.methods)
    encoder: str = setting(ABSENT, "model that is pre-trained", lambda name: name and models.arguments(name))
    decoder_embed_dim: int | None = number(ABSENT, "width of a token in the decoder", at_least=1, example=512)
    decoder_depth: int | None = number(ABSENT, "number of blocks of the decoder", at_least=1, example=8)
    decoder_num_heads: int | None = number(ABSENT, "heads of a block of the decoder", at_least=1, example=16)
    mask_ratio: float = number(ABSENT, "share that the encoder does not see", above=0, below=1, example=0.75)
    norm_pix_loss: bool = setting(ABSENT, "normalise the pixels of a patch before the loss")
    reconstruction: str = setting(ABSENT, '"full", "partial" or "progressive" (PR-MIM)')
    throw_ratio: float = number(ABSENT, "share that the decoder does not see", at_least=0, below=1, example=0.5)
    retain: str = setting(ABSENT, 'how the decoded patches are chosen: "furthest" or "random"')
    kernel_size: int = setting(ABSENT, "of the aggregation that reconstructs thrown patches")
    aggregation: str = setting(ABSENT, "patches that the aggregation computes: thrown or all")
    remat: bool = setting(ABSENT, "recompute activations in the backward pass, to save memory")


# `config.mim` for MAE's networks, and PR-MIM on them.
NETWORKS = {
    "name": "mae",
    "encoder": "vit_base_patch16_224",
    "decoder_embed_dim": 512,
    "decoder_depth": 8,
    "decoder_num_heads": 16,
}
PR_MIM = Framework(
    **NETWORKS,
    mask_ratio=0.75,
    norm_pix_loss=True,
    reconstruction="progressive",
    throw_ratio=0.5,
    retain="furthest",
    kernel_size=7,
    aggregation="thrown",
    remat=False,
)
# The teacher in a smoke run, as a recipe for `mim.create`: an untrained network.
TINY_NETWORK = ("model", tuple({"name": "vit", **groups.TINY, "num_classes": 0}.items()))


@record(recipe=True)
class Settings(groups.Recipe):
    """A framework, its optimizer, and images to pre-train on."""

    TOGETHER = True
    FIRST = (
        *("data.source", "data.path", "data.img_size", "mim.name", "mim.encoder"),
        *("mim.reconstruction", "mim.throw_ratio", "epochs", "max_minutes", "batch_size"),
    )

    mim: Framework = PR_MIM
    masks_on_host: bool = setting(False, "draw furthest-point masks in the data workers (PR-MIM Sec. 3.2)", free=True)
    optimizer: groups.Optimizer = groups.Optimizer(base_lr=1.5e-4, warmup_epochs=40.0)
    flip: bool = setting(True, "horizontal flips")
    picture_every: int = number(500, "steps between reconstructions; 0: only at the end", at_least=0, free=True)

    @classmethod
    def extra_groups(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The frozen networks that the framework learns from, such as a teacher."""
        return {name: groups.Source() for name in networks(values["mim"])}

    @staticmethod
    def missing(config: Config) -> Iterator[str]:
        """Yields the networks that the framework needs and the config lacks."""
        for name in networks(config.mim):
            inside = name in config.mim and config.mim[name]
            beside = name in config and (config[name].run or config[name].weights)
            if not inside and not beside:
                yield (
                    f"{config.mim.name} needs a {name}, and config.{name} is empty: give --config.{name}.weights=FILE "
                    f"with --config.{name}.name=MODEL, a published file, or --config.{name}.run=RUN, a jaxprune run."
                )


def networks(framework: Mapping[str, Any]) -> list[str]:
    """The network arguments of the framework of a `config.mim`."""
    cls = mim.methods().get(framework["name"])
    return sorted(cls.networks) if cls else []


def smoke(config: Config) -> Config:
    """Shrinks a config of the command to run in seconds on a CPU, on built-in data."""
    groups.shrink(config)
    config.mim = tiny(config.mim)
    config.picture_every = 2
    for name in networks(config.mim):
        config.mim[name] = TINY_NETWORK
        config[name] = {"run": "", "name": "", "weights": ""}
    return config


def tiny(framework: Config) -> dict[str, Any]:
    """Returns `config.mim` with the sizes of a smoke run."""
    # Arguments of most frameworks; others have another kind of decoder and masks.
    sizes = {"decoder_embed_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2, "mask_patch": 8}
    sizes = {name: size for name, size in sizes.items() if name in framework}
    stages = models.tiny(framework.encoder) if "encoder" in framework and framework.encoder else {}
    encoder = {**stages, "encoder": models.module_of(framework.encoder)} if stages else {**groups.TINY, "encoder": ""}
    return {**framework.to_dict(), **encoder, **sizes}
