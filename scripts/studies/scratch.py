"""Trains the quickstart's classifier from scratch for as long as its pre-training and fine-tuning took together.

python scripts/studies/scratch.py [--run runs/quickstart] [--rates 4e-3 8e-3 1.6e-2] [--seeds 1] [--out runs/scratch]

`quickstart.py:scratch=steps` compares at equal fine-tuning time; this is the comparison at equal total time, at several
rates. --run is such a run, finished on this machine: its times set the number of epochs, so that every training from
scratch is a whole one, with its learning rate decayed to zero. Each rate and seed has its own directory under --out, so
an interrupted study can be resumed. The table has a row per training, with 95 % intervals over the held-out images.
"""

from jaxprune import host_memory

if __name__ == "__main__":
    host_memory.use_huge_pages()  # as the training program; restarts this one, hence before the slow imports

import argparse
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune import commands
from jaxprune.bench.publish import publish
from jaxprune.commands.quickstart.settings import phase_config
from jaxprune.commands.shared.inputs import recorded_config
from jaxprune.errors import UserError, command
from jaxprune.train.progress import log_to_terminal
from jaxprune.train.workdir import is_complete, read_summary


def steps_in(seconds, summary):
    """Steps that a training like that of a summary takes in a time."""
    return seconds / summary["seconds"] * summary["steps"]


def row(phase, summary, rate, seconds=0.0):
    """A row of the table."""
    accuracy = {name: summary[name] for name in ("accuracy", "accuracy_low", "accuracy_high")}
    minutes = (summary["seconds"] + seconds) / 60
    return {"training": phase, "base_lr": rate, "steps": summary["steps"], "minutes": minutes, **accuracy}


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--rates", type=float, nargs="+", default=[4e-3, 8e-3, 1.6e-2], help="base learning rates")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/scratch"))
    args = parser.parse_args()
    log_to_terminal()
    for phase in ("pretrain", "finetune", "scratch"):
        if not is_complete(args.run / phase):
            raise UserError(
                f"{args.run / phase} is not a finished training: run configs/quickstart.py:scratch=steps first."
            )
    before, tuned, short = (read_summary(args.run / phase) for phase in ("pretrain", "finetune", "scratch"))
    config: Any = ConfigDict(recorded_config(args.run))
    epochs = steps_in(before["seconds"] + tuned["seconds"], short) * config.finetune.batch_size / tuned["examples"]
    rows = [
        row("pre-trained and fine-tuned", tuned, config.finetune.optimizer.base_lr, before["seconds"]),
        row("from scratch, as long as fine-tuning", short, config.scratch.base_lr),
    ]
    for seed in range(args.seeds):
        for rate in args.rates:
            settings = phase_config(config, "scratch", args.run)
            settings.update(seed=seed, epochs=epochs, max_minutes=0.0)
            settings.optimizer.base_lr = rate
            summary = commands.find("finetune")(settings, args.out / f"{rate:g}-{seed}")
            if summary.get("stopped"):
                return
            rows.append(row(f"from scratch, as long as both, seed {seed}", summary, rate))
    publish("Equal total time", rows, args.out / "scratch.csv")


if __name__ == "__main__":
    run()
