"""The settings of linear probing: MAE's protocol, with LARS and no weight decay."""

from ml_collections import ConfigDict

from jaxprune.commands.pretrain import settings as pretraining
from jaxprune.commands.shared import defaults as shared
from jaxprune.commands.shared import train_first
from jaxprune.config import Config
from jaxprune.data.loader import RANDOM_CLIPPED


def defaults() -> Config:
    """Returns the defaults of the task."""
    common = shared.training("linear_probe")
    return ConfigDict(
        {
            **common,
            "data": {**common["data"], "crop": RANDOM_CLIPPED, "crop_scale": (0.08, 1.0)},
            "run": "",  # a run directory to probe; for a published file set model.weights
            "model": {"name": "vit_base_patch16_224", "weights": "", "global_pool": "token"},
            "flip": True,
            "optimizer": {**shared.schedule(base_lr=0.1, warmup_epochs=10.0), "momentum": 0.9},
        }
    )


def smoke(config: Config) -> Config:
    """Shrinks a config of the task to run in seconds on a CPU, on built-in data."""
    shared.shrink(config)
    if not (config.run or config.model.weights):
        config.train = pretraining.smoke(pretraining.defaults())
    config.model = {**config.model.to_dict(), **shared.TINY, "name": "vit"}
    return config


def missing(config: Config) -> list[str]:
    """Returns a message if there is no network to probe."""
    if config.run or config.model.weights or train_first.brings_run(config):
        return []
    return ["Give --config.run=RUN, a run directory, or --config.model.weights=FILE, to probe."]
