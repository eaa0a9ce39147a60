"""Runs the phases of the workflow one after the other, and writes one report."""

import json
import time
from pathlib import Path
from typing import Any

from jaxprune.commands import benchmark, finetune, pretrain, train_ranker
from jaxprune.commands.quickstart.headline import checked, expectations, faster_plans
from jaxprune.commands.quickstart.page import describe, verdicts
from jaxprune.commands.quickstart.settings import phase_config, phases
from jaxprune.commands.quickstart.step_times import step_times
from jaxprune.commands.shared.training import begin
from jaxprune.config import Config
from jaxprune.files import write_atomically
from jaxprune.report import findings
from jaxprune.train import workdir as workdirs
from jaxprune.train.writer import METRICS, read_metrics

_TASKS = {"pretrain": pretrain.run, "finetune": finetune.run, "scratch": finetune.run, "ranker": train_ranker.run}


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Runs the phases one after the other, each in its own run directory in `workdir`, and writes one report."""
    if summary := begin(config, workdir):
        return summary
    for text in expectations(config).values():
        print(f"Expected: {text}.")
    summaries = {}
    for phase in phases(config):
        task, settings = _TASKS[phase], phase_config(config, phase, workdir)
        began = time.monotonic()
        summaries[phase] = task(settings, workdir / phase)
        if summaries[phase].get("stopped"):
            return {"phase": phase, **summaries[phase]}
        summaries[phase]["wall_seconds"] = round(time.monotonic() - began, 1)
    _join_metrics(config, workdir)
    pruned = None
    if "pruned" in config:
        pruned = benchmark.measure(phase_config(config, "pruned", workdir), workdir / "pruned")
    steps = step_times(phase_config(config, "pretrain", workdir), config.step_rounds) if config.step_rounds else None
    # Not every target supports a mean colour, and not all data have object masks.
    optional = {
        "reconstruction_ratio": summaries["pretrain"].get("ratio_to_mean_colour"),
        "object_recall": summaries.get("ranker", {}).get("recall"),
    }
    summary = {
        **{name: value for name, value in optional.items() if value is not None},
        "accuracy": summaries["finetune"]["accuracy"],
        **({"accuracy_from_scratch": summaries["scratch"]["accuracy"]} if "scratch" in summaries else {}),
        **(_best(pruned) if pruned else {}),
        "seconds": {phase: round(s["seconds"], 1) for phase, s in summaries.items()},
    }
    describe(config, workdir, summaries, pruned, steps)
    for row in checked(config, summaries, pruned.rows if pruned else ()):
        print(f"Expected: {row['expected before the run']}. Measured: {row['measured']}. {row['came true']}")
    for text in verdicts(config, summaries, steps):
        print(text)
    workdirs.mark_complete(workdir, summary)
    return summary


def _best(pruned: benchmark.Measured) -> dict[str, Any]:
    """The plan that stands out in accuracy among those faster than the dense network, if one does; {} without any."""
    faster = {row.cost.plan: (row.result.scores.accuracy, row.cost.promise.factor) for row in faster_plans(pruned.rows)}
    if not faster:
        return {}
    name = findings.standing_out({plan: accuracy for plan, (accuracy, _) in faster.items()})
    if name not in faster:
        return {"pruned_by": "no plan stands out"}
    accuracy, factor = faster[name]
    return {"pruned_by": name, "accuracy_pruned": accuracy.value, "speed_up_pruned": factor}


def _join_metrics(config: Config, workdir: Path) -> None:
    rows = ((phase, row) for phase in phases(config) for row in read_metrics(workdir / phase))
    lines = [json.dumps({"phase": phase, **row}, sort_keys=True) for phase, row in rows]
    write_atomically(workdir / METRICS, "\n".join(lines) + "\n")
