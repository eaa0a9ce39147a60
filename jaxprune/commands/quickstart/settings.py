"""The settings of the whole workflow: those of its phases, each the config of another task."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune.commands.finetune import settings as finetuning
from jaxprune.commands.pretrain import settings as pretraining
from jaxprune.commands.train_ranker import settings as ranking
from jaxprune.config import Config

RANKER = "ltrp"  # as the scorer of plans, means the ranker of this run
PHASES = ("pretrain", "finetune", "scratch", "ranker")


def defaults(
    pretrain: Config,
    finetune: Config,
    ranker: Config | None = None,
    pruned: Config | None = None,
    scratch: Mapping[str, Any] | None = None,
) -> Config:
    """Returns the config of the task, from the configs of its phases.

    Args:
      ranker: config of the ranker's training; without it no ranker is trained.
      pruned: config of `benchmark` with the plans for the fine-tuned classifier; without it there is no comparison.
      scratch: optimizer settings of training from scratch that differ from fine-tuning.
    """
    optional = {"ranker": ranker, "pruned": pruned}
    return ConfigDict(
        {
            "task": "quickstart",
            "seed": 0,
            "workdir": "",
            "pretrain": pretrain,
            "finetune": finetune,
            "scratch": {"layer_decay": 1.0, **(scratch or {})},  # optimizer settings that differ from fine-tuning
            **{name: phase for name, phase in optional.items() if phase is not None},
        }
    )


def smoke(config: Config) -> Config:
    """Shrinks a config of the task to run in seconds on a CPU, on built-in data."""
    pretraining.smoke(config.pretrain)
    finetuning.smoke(config.finetune)
    if "ranker" in config:
        ranking.smoke(config.ranker)
    if "pruned" in config:
        config.pruned.update(batch_size=4, rounds=1, num_images=12)
    return config


def phases(config: Config) -> list[str]:
    """The phases of the config, in order; a ranker is trained if the config has one."""
    return [phase for phase in PHASES if phase != "ranker" or "ranker" in config]


def phase_config(config: Config, phase: str, workdir: Path) -> Config:
    """The config of one phase; training from scratch is fine-tuning without pre-trained weights."""
    settings: Any = ConfigDict(config["finetune" if phase == "scratch" else phase].to_dict())
    settings.seed = config.seed
    if phase == "scratch":
        settings.optimizer.update(config.scratch)
    pretrained = str(workdir / "pretrain")
    if phase == "finetune":
        settings.run = pretrained
    if phase == "ranker":
        settings.label_model = pretrained
    if phase == "pruned":
        settings.run = str(workdir / "finetune")
        if settings.scorer == RANKER:
            settings.scorer = f"{RANKER}:run={workdir / 'ranker'}"
    return settings
