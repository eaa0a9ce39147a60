"""The settings of the whole workflow: those of its phases, each the config of another task."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune.commands.finetune import settings as finetuning
from jaxprune.commands.pretrain import settings as pretraining
from jaxprune.commands.shared import settings
from jaxprune.commands.train_ranker import settings as ranking
from jaxprune.config import Config
from jaxprune.errors import quoted
from jaxprune.train import workdir as workdirs

_TIMES_ABOUT = 'of training from scratch: "steps" as fine-tuning, "equal" to the time of both phases, or "none"'
_SLACK = 1.1  # on the time from scratch, since steps vary in length
NO_SCRATCH = "none"
RANKER = "ltrp"  # as the scorer of plans, means the ranker of this run
PHASES = ("pretrain", "finetune", "scratch", "ranker")


@settings.record(is_open=True)
class Scratch:
    """`config.scratch`: optimizer settings of training from scratch that differ from fine-tuning."""

    layer_decay: float = settings.number(1.0, "see finetune.optimizer", above=0, at_most=1)


@settings.record()
class Expected:
    """`config.expected`: what the run should show, written before it and checked in its report; 0: nothing expected."""

    accuracy: float = settings.number(0.0, "of the fine-tuned classifier, at least", at_least=0, at_most=1)
    speed_up: float = settings.number(0.0, "measured, of a plan, at least", at_least=0)
    lost: float = settings.number(0.02, "accuracy that this plan loses, at most", at_least=0, at_most=1)


@settings.record()
class Settings(settings.Settings):
    """The configs of the phases: `pretrain`, `finetune`, and optionally `ranker` and `pruned`.

    Without `ranker`, the config of a ranker's training, no ranker is trained; without `pruned`, a config of `benchmark`
    with plans for the fine-tuned classifier, there is no comparison.
    """

    TRAINS = True
    FIRST = (
        *("scratch.base_lr", "scratch.layer_decay", "pretrain.epochs", "finetune.epochs", "pretrain.data.source"),
        *("pretrain.data.path", "pretrain.mim.name", "ranker.epochs", "workdir", "seed"),
    )

    expected: Expected = Expected()
    step_rounds: int = settings.number(0, "> 0: times a step of PR-MIM and of the full form, in rounds", at_least=0)
    scratch: Scratch = Scratch()
    scratch_time: str = settings.choice("steps", _TIMES_ABOUT, ("steps", "equal", NO_SCRATCH))

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields the settings of phases that the run would replace: the seed, and the networks they begin with."""
        for phase in ("pretrain", "finetune", "ranker", "pruned"):
            for key, replacement in _from_run(config, phase, Path()).items() if phase in config else ():
                value = config[phase][key]
                if value and (key != "seed" or value != replacement):
                    remedy = f"set {prefix}seed" if key == "seed" else f"run the task {config[phase].task} alone"
                    yield f"{prefix}{phase}.{key}={quoted(value)} would be replaced by what the run has: {remedy}."


def smoke(config: Config) -> Config:
    """Shrinks a config of the command to run in seconds on a CPU, on built-in data."""
    pretraining.smoke(config.pretrain)
    finetuning.smoke(config.finetune)
    config.step_rounds = min(config.step_rounds, 1)
    if "ranker" in config:
        ranking.smoke(config.ranker)
    if "pruned" in config:
        # The network of a smoke run has two blocks.
        plans = dict.fromkeys(re.sub(r"@\d+", lambda at: min(at[0], "@1"), text) for text in config.pruned.plans)
        config.pruned.update(plans=tuple(plans), batch_size=4, rounds=1, num_images=12)
    return config


def phases(config: Config) -> list[str]:
    """The phases of the config, in order: a ranker is trained if it has one, and from scratch if it says how long."""
    left_out = {"ranker": "ranker" not in config, "scratch": config.scratch_time == NO_SCRATCH}
    return [phase for phase in PHASES if not left_out.get(phase)]


def phase_config(config: Config, phase: str, workdir: Path) -> Config:
    """The config of one phase; training from scratch is fine-tuning without pre-trained weights."""
    settings: Any = ConfigDict(config["finetune" if phase == "scratch" else phase].to_dict())
    settings.update(_from_run(config, phase, workdir))
    if phase == "scratch":
        settings.optimizer.update(config.scratch)
        if config.scratch_time == "equal":
            _lengthen(settings, workdir)
    if phase == "pruned" and settings.scorer == RANKER:
        settings.scorer = f"{RANKER}:run={workdir / 'ranker'}"
    return settings


def _from_run(config: Config, phase: str, workdir: Path) -> dict[str, Any]:
    """The settings of a phase that the run sets: the seed, and the network that it begins with."""
    pretrained, tuned = str(workdir / "pretrain"), str(workdir / "finetune")
    networks = {"finetune": {"run": pretrained}, "ranker": {"label_model": pretrained}, "pruned": {"run": tuned}}
    return {"seed": config.seed, **networks.get(phase, {})}


def _lengthen(settings: Any, workdir: Path) -> None:
    """Makes training from scratch as long as the two other phases, which have to be complete.

    What counts is the time of their steps: they evaluate seldom, and training from scratch as often as it is longer.
    """
    first, second = (workdirs.read_summary(workdir / phase) for phase in ("pretrain", "finetune"))
    pretraining_seconds, seconds = seconds_of_steps(first), seconds_of_steps(second)
    # As many times the steps that fine-tuning took, which its own limit on time may have cut.
    settings.steps = max(round((pretraining_seconds + seconds) / seconds * second["steps"]), 1)
    settings.max_minutes = _SLACK * (first["seconds"] + second["seconds"]) / 60


def seconds_of_steps(summary: Mapping[str, Any]) -> float:
    """The seconds that the steps of a complete phase took, without evaluation and saving."""
    return summary.get("wall_clock", {}).get("steps", summary["seconds"])
