"""The settings of the main job: those of its phases, each a config of a task of its own."""

from pathlib import Path

from ml_collections import ConfigDict

from jaxprune.config import Config
from jaxprune.tasks.finetune import settings as finetuning
from jaxprune.tasks.pretrain import settings as pretraining
from jaxprune.tasks.train_ranker import settings as ranking

PHASES = ("pretrain", "finetune", "scratch", "ranker")


def defaults(pretrain: Config, finetune: Config, ranker: Config | None = None) -> Config:
    """Returns the config of the task from those of its phases; without a ranker none is trained."""
    phases = {"pretrain": pretrain, "finetune": finetune} | ({} if ranker is None else {"ranker": ranker})
    return ConfigDict({"task": "quickstart", "seed": 0, "workdir": "", **phases})


def smoke(config: Config) -> Config:
    """Shrinks a config of the task to run in seconds on a CPU, on built-in data."""
    pretraining.smoke(config.pretrain)
    finetuning.smoke(config.finetune)
    if "ranker" in config:
        ranking.smoke(config.ranker)
    return config


def phases(config: Config) -> list[str]:
    """The phases that the config describes, in their order; a ranker is trained if it has one."""
    return [phase for phase in PHASES if phase != "ranker" or "ranker" in config]


def phase_config(config: Config, phase: str, workdir: Path) -> Config:
    """The config of one phase; training from scratch is fine-tuning without pre-trained weights."""
    settings = ConfigDict(config["finetune" if phase == "scratch" else phase].to_dict())
    settings.seed = config.seed
    pretrained = str(workdir / "pretrain")
    if phase == "finetune":
        settings.run = pretrained
    if phase == "ranker":
        settings.label_model = pretrained
    return settings
