"""The report section on a linear probe."""

from pathlib import Path
from typing import Any

from jaxprune.commands.shared import networks, reporting
from jaxprune.config import Config
from jaxprune.train.writer import read_metrics


def describe(config: Config, workdir: Path, summary: dict[str, Any], *sources: Any) -> None:
    """Adds the section on a run to its report.

    Args:
      summary: the summary of the run.
      sources: data sources whose unreadable files are listed.
    """
    with reporting.report_section(workdir, workdir.name, "Linear probe", f"probe-{workdir.name}") as section:
        section.text(f"On {summary['data']}, frozen features of {networks.start_of(config)}.")
        reporting.note_if_short(section, summary)
        tiles = reporting.accuracy_tiles(summary)
        section.metric_tiles({**tiles, "steps": summary["steps"], "seconds": round(summary["seconds"])})
        records = read_metrics(workdir)
        lines = {"train/accuracy": "training", "eval/accuracy": "held-out"}
        reporting.curves(section, records, lines, "accuracy", shares=True, chance=1 / summary["classes"])
        reporting.wall_clock(section, summary)
        reporting.broken_files(section, *sources)
