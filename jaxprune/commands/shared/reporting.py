"""Shared by the reports of all tasks: a section with its command line, curves, unreadable files."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from jaxprune.measures.intervals import wilson_interval
from jaxprune.report import Report, Section, plots, spread
from jaxprune.text import shell_line
from jaxprune.train.wall_clock import goodput


@contextlib.contextmanager
def report_section(
    workdir: Path, subtitle: str, title: str, slug: str, command_line: str = "", *, name: str = "jaxprune"
) -> Iterator[Section]:
    """Yields a section; once filled, it is added with its command line to the report of a run directory.

    Args:
      workdir: the run directory.
      subtitle, name: of the report, if this is its first section.
      title, slug: of the section.
      command_line: by default that of this run.
    """
    report = Report(name, subtitle)
    section = report.section(title, slug=slug)
    yield section
    section.command(command_line or command())
    report.add_to(workdir / "report.html")


def command(*arguments: str) -> str:
    """The command line with these arguments, by default those of this run, to read and to paste into a shell."""
    return shell_line(["python", "-m", "jaxprune.main", *(arguments or sys.argv[1:])])


def curves(
    section: Section,
    records: list[dict[str, Any]],
    names: dict[str, str],
    caption: str,
    *,
    shares: bool = False,
    chance: float | None = None,
) -> None:
    """Adds a plot of the metrics `names` in `records`, with their last values in its caption.

    Args:
      records: the lines of the run's metrics.
      names: {"split/metric": label of its line}.
      caption: description of the metrics.
      shares: whether the metrics are fractions, shown in percent in the caption.
      chance: the value at chance, drawn as a line.
    """
    series = {}
    for name, label in names.items():
        split, metric = name.split("/")
        points = [(r["step"], r[metric]) for r in records if r["split"] == split and metric in r]
        if points:
            x, y = np.array(points, float).T
            series[label] = (x, y)
    if series:
        ends = [x[i] for x, _ in series.values() for i in (0, -1)]
        reference = None if chance is None else {"chance": ([min(ends), max(ends)], [chance, chance])}
        options = {"reference": reference, "shares": shares}
        plot = plots.line_plot(series, xlabel="step", ylabel=caption, **options)
        last = ", ".join(f"{label} {y[-1]:{'.1%' if shares else '.4g'}}" for label, (_, y) in series.items())
        against = "" if chance is None else f"; chance {chance:.1%}"
        section.figure(plot, caption=f"At the end, {caption}: {last}{against}.{plots.cut_note(plot)}")


def broken_files(section: Section, *sources: Any) -> None:
    """Lists the files that could not be read in the report."""
    broken = {path: why for s in sources for path, why in s.broken.items()}
    if broken:
        files = "1 file" if len(broken) == 1 else f"{len(broken)} files"
        section.note(f"{files} could not be read: replaced in training, left out of tests.", kind="warning")
        section.table([{"file": str(path), "why": str(why)} for path, why in sorted(broken.items())])


def read_picture(path: Path) -> np.ndarray:
    """Reads a picture drawn by a run."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def note_if_short(section: Section, summary: dict[str, Any]) -> None:
    """Notes in the report that a run ended before its last planned step."""
    if summary["steps"] < summary["planned_steps"]:
        section.note(
            f"Stopped at step {summary['steps']} of {summary['planned_steps']}: max_minutes was reached.",
            kind="warning",
        )


def wall_clock(section: Section, summary: Mapping[str, Any]) -> None:
    """Adds a table of where the wall-clock of a run went, over all its sessions; nothing for runs of before."""
    wall_clocks(section, {"": summary})


def wall_clocks(section: Section, summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds a table as `wall_clock` does, of several runs with their names; runs of before are left out."""
    by_name = {name: spent for name, summary in summaries.items() if (spent := summary.get("wall_clock"))}
    if not by_name:
        return
    rows = [
        {
            **({"run": name} if name else {}),
            "steps ÷ all": goodput(spent),
            "wall-clock, s": sum(spent.values()),
            **{f"{kind}, s": seconds for kind, seconds in spent.items()},
        }
        for name, spent in by_name.items()
    ]
    low, *_, high = sorted([goodput(spent) for spent in by_name.values()] * 2)
    section.table(
        rows,
        caption=f"Steps took {f'{low:.0%} to ' if low < high else ''}{high:.0%} of the wall-clock of all sessions. "
        "data: the host waited for a batch, perhaps while the devices computed; lost: training after the last save "
        "before an interruption, which was done again.",
        formats=".3g",
    )


def with_interval(summary: dict[str, Any]) -> dict[str, Any]:
    """Returns a summary with the 95 % interval (Wilson) of its held-out accuracy."""
    images = summary["held_out"]
    low, high = wilson_interval(round(summary["accuracy"] * images), images)
    return {**summary, "accuracy_low": low, "accuracy_high": high}


def accuracy_tiles(summary: dict[str, Any]) -> dict[str, Any]:
    """Returns a tile with the held-out accuracy and its 95 % interval."""
    note = spread.of_share(summary["accuracy_low"], summary["accuracy_high"], summary["held_out"])
    return {"held-out accuracy": (f"{summary['accuracy']:.1%}", note)}
