"""What the reports of `segment` and `detect` share: what was trained and tested, and networks compared under plans."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from jaxprune.bench.costs import PlanCost
from jaxprune.commands.shared import reporting
from jaxprune.config import Config
from jaxprune.measures.intervals import Interval
from jaxprune.open.rivals import IMG_SIZE
from jaxprune.report import Section, findings, plots
from jaxprune.report.table import Table

# Explanation of the rows of networks on smaller images.
RIVALS = (
    f"{IMG_SIZE}=N is the first row's network on smaller images of N rows and columns ({IMG_SIZE}=RxC: R rows and C "
    "columns), resized from the same ones, without a plan: what a plan of its FLOPs has to beat."
)

Outcome = TypeVar("Outcome")


class Tested(NamedTuple, Generic[Outcome]):
    """What a network made of a set, and its cost for one image that it reads, head included.

    Attributes:
      gflops: counted.
      cost: measured, if it was.
    """

    outcome: Outcome
    gflops: float
    cost: PlanCost | None = None


def trains(summary: Mapping[str, Any]) -> bool:
    """Whether a summary is that of a training run, and not of a test alone."""
    return "steps" in summary


def introduction(config: Config, summary: Mapping[str, Any], learners: str) -> str:
    """Returns what the network was trained or tested on.

    Args:
      learners: what is trained on a frozen encoder: "only the head is".
    """
    under = f", under {summary['plan']}" if summary["plan"] else ""
    frozen = f" A frozen encoder: {learners} trained." if trains(summary) and config.frozen else ""
    return f"{'Trained on' if trains(summary) else 'On'} {summary['data']}{under}.{frozen}"


def add_tiles(section: Section, summary: Mapping[str, Any], scores: Mapping[str, str], interval: str) -> None:
    """Adds the scores of a summary with their intervals and, of a training run, its length.

    Args:
      scores: {title: key of the summary, whose ends are at KEY_low and KEY_high}.
      interval: what the intervals are.
    """
    tiles: dict[str, Any] = {}
    for title, key in scores.items():
        span = f"{summary[f'{key}_low']:.1%} to {summary[f'{key}_high']:.1%}"
        tiles[title] = (f"{summary[key]:.1%}", f"{span}, {interval}, {summary['images']} images")
    if trains(summary):
        reporting.note_if_short(section, dict(summary))
        tiles |= {"steps": summary["steps"], "seconds": round(summary["seconds"])}
    section.metric_tiles(tiles)


def add_comparison(
    section: Section,
    workdir: Path,
    rows: Table,
    *,
    field: str,
    score: str,
    columns: Sequence[str],
    caption: str,
    windows: bool = False,
) -> None:
    """Adds networks under plans as a table and a plot, and writes `plans.csv`.

    The plot is of the score against measured speed, or against FLOPs if speed was not measured.

    What one runs the command for comes first: a narrow page shows the rest behind a scroll bar.

    Args:
      rows: with the fields plan, gflops, difference, images_per_second and promise; the network as it is first.
      field: of the score, an `Interval`.
      score: its name.
      columns: the other fields of a row.
      caption: of the table.
      windows: whether images are tested by windows, which speed and FLOPs are then of.
    """
    rivals = f" {RIVALS}" if any(row.plan.startswith(f"{IMG_SIZE}=") for row in rows) else ""
    rows.write_csv(workdir / "plans.csv")
    first, last = ("plan", field, "difference", "speed_up", "verdict"), ("images_per_second", "implied", "ratio")
    section.table(rows.only(*first, *columns, "gflops", *last), caption=f"{caption}{rivals}")
    scores: dict[str, Interval] = {row.plan: getattr(row, field) for row in rows}
    timed = all(row.images_per_second is not None for row in rows)
    cost = lambda row: row.images_per_second if timed else row.gflops
    series = {row.plan: ([cost(row)], [scores[row.plan].value]) for row in rows}
    spans = {name: [(span.low, span.high)] for name, span in scores.items()}
    label, cheaper = (f"images/s{', of windows' * windows}", "max") if timed else ("GFLOPs", "min")
    plot = plots.scatter_plot(series, label, score, pareto=(cheaper, "max"), shares=True, intervals=spans)
    finding = findings.finding(scores, score, of="networks")
    section.figure(plot, f"{finding}.{plots.front_note(plot)}{plots.cut_note(plot)}")
