"""How many epochs of fine-tuning fit into some minutes, so that all arms of a study learn for the same time."""

import json
from pathlib import Path

from jaxprune import commands
from jaxprune.commands.shared import inputs
from jaxprune.config import Config

TIMED_STEPS = 16


def epochs_within(minutes: float, config: Config, name: str, out: Path) -> float:
    """Returns the number of epochs that fit into `minutes`, at the speed of a short run of the same config.

    Args:
      minutes: of training, without compilation and evaluation.
      config: of fine-tuning.
      name: of the arm.
      out: the folder of the study, which keeps the number, so that a study goes on with it elsewhere.
    """
    kept = out / "epochs.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    if (key := f"{name}, {minutes:g} minutes") not in known:
        per_epoch = len(inputs.source(config, "train", in_memory=False)) // config.batch_size
        config.steps = TIMED_STEPS
        summary = commands.find("finetune")(config, out / "timed" / name)
        a_step = 60 * minutes_of(summary) / (summary["steps"] - 1)  # the first counts as compilation
        known[key] = max(round(60 * minutes / a_step), 1) / per_epoch
        kept.write_text(json.dumps(known))
    return round(known[key], 4)


def minutes_of(summary) -> float:
    """Returns the minutes that a run spent on training, by its summary."""
    spent = summary["wall_clock"]
    return (spent["steps"] + spent["data"]) / 60
