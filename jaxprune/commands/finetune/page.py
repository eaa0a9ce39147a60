"""The report section on the training of a classifier."""

from pathlib import Path
from typing import Any

from jaxprune.commands.shared import networks, reporting
from jaxprune.config import Config
from jaxprune.train.writer import read_metrics


def describe(
    config: Config, workdir: Path, summary: dict[str, Any], *sources: Any, report_dir: Path | None = None
) -> None:
    """Adds the section on a run to its report, or to that of the run directory `report_dir`.

    Args:
      summary: the summary of the run.
      sources: data sources whose unreadable files are listed.
    """
    start = networks.start_of(config)
    title, slug = "Fine-tuning" if start else "Training from scratch", f"finetune-{workdir.name}"
    with reporting.report_section(report_dir or workdir, workdir.name, title, slug) as section:
        plan = f", under {summary['plan']}" if summary["plan"] else ""
        section.text(f"On {summary['data']}, {f'from {start}' if start else 'from random weights'}{plan}.")
        reporting.note_if_short(section, summary)
        tiles = {**_tiles(summary), "steps": summary["steps"], "seconds": round(summary["seconds"])}
        section.metric_tiles(tiles)
        records = read_metrics(workdir)
        reporting.curves(section, records, {"train/loss": "training", "eval/loss": "held-out"}, "cross-entropy")
        accuracy = {"eval/accuracy": "held-out", "eval/ema_accuracy": "averaged weights"}
        reporting.curves(section, records, accuracy, "accuracy", shares=True, chance=1 / summary["classes"])
        several = {"eval/map": "held-out", "eval/ema_map": "averaged weights"}
        reporting.curves(section, records, several, "mean average precision", shares=True)
        reporting.wall_clock(section, summary)
        reporting.broken_files(section, *sources)


def _tiles(summary: dict[str, Any]) -> dict[str, Any]:
    if "map" in summary:
        return {"held-out mAP": (f"{summary['map']:.1%}", f"mean average precision over {summary['held_out']} images")}
    return {**reporting.accuracy_tiles(summary), "chance": f"{1 / summary['classes']:.1%}"}
