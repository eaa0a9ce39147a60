"""How many steps of training fit into some minutes, so that all arms of a study learn for the same time."""

import json
from pathlib import Path

from jaxprune import commands
from jaxprune.commands.shared import inputs
from jaxprune.config import Config
from jaxprune.train.writer import TIMINGS

TIMED_STEPS = 16


def steps_within(minutes: float, config: Config, name: str, out: Path) -> int:
    """Returns the number of steps that fit into `minutes`, at the speed of a short run of the same config.

    Args:
      minutes: of training, without compilation and evaluation.
      config: of a command that trains; its length is changed.
      name: of the arm.
      out: the folder of the study, which keeps the number, so that a study goes on with it elsewhere.
    """
    kept = out / "steps.json"
    counts = json.loads(kept.read_text()) if kept.exists() else {}
    if (key := f"{name}, {minutes:g} minutes") not in counts:
        config.steps = TIMED_STEPS
        commands.find(config.task)(config, out / "timed" / name)
        # Not the minutes of so short a run, which are not of its steps alone.
        a_step = json.loads((out / "timed" / name / TIMINGS).read_text())["step_seconds"]["last"]
        counts[key] = max(round(60 * minutes / a_step), 1)
        kept.write_text(json.dumps(counts))
    return counts[key]


def epochs_within(minutes: float, config: Config, name: str, out: Path) -> float:
    """Returns the number of epochs that fit into `minutes`; see `steps_within`."""
    per_epoch = len(inputs.source(config, "train", in_memory=False)) // config.batch_size
    return round(steps_within(minutes, config, name, out) / per_epoch, 4)


def minutes_of(summary) -> float:
    """Returns the minutes that a run spent on training, by its summary."""
    spent = summary["wall_clock"]
    return (spent["steps"] + spent["data"]) / 60
