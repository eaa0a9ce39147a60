"""Healed networks on the page: accuracy against measured speed, and how each came closer to the dense network."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxprune.commands.recover.pictures import Difference
from jaxprune.commands.recover.students import Healing
from jaxprune.commands.shared import plans_page, reporting
from jaxprune.config import Config
from jaxprune.evaluate.collectors.kept import KeptPatches
from jaxprune.measures.intervals import Interval
from jaxprune.open.rivals import is_smaller_images
from jaxprune.recover.compare import RateRow, Row
from jaxprune.recover.healing import MOST_HELD_OUT
from jaxprune.reduction import DENSE
from jaxprune.report import Section, findings, plots, spread
from jaxprune.report.pictures.layout import upscale
from jaxprune.report.table import Table
from jaxprune.train.writer import read_metrics

# What the command is run for comes first: a narrow page shows the rest behind a scroll bar.
COLUMNS = (
    *("name", "speed", "accuracy", "lost", "agreement"),
    *("agreement_before", "rescued", "gflops", "minutes", "images"),
)
# What stands beside every plan, and the names of its rows.
_BASELINES: dict[str, Callable[[str], bool]] = {
    "Random (--config.plans)": lambda name: name.startswith("random"),
    "the same network on smaller images (--config.rivals)": is_smaller_images,
}


class Comparison(NamedTuple):
    """The contestants side by side.

    Attributes:
      rows: the dense network first.
      results: of each healed one, its steps, and its similarity to the dense network before and after.
      by_features: whether classes are those of a linear head on the dense features.
      rates: of networks healed for several keep rates, each of these.
      kept: by network under a plan, the patches of some images that are left after each step.
      differences: images on which healed networks still differ from the dense one.
      class_names: the names of the classes that the networks predict, if they are known.
      fair: the rivals that were chosen at about the FLOPs of plans.
    """

    rows: Table[Row]
    results: Mapping[str, Mapping[str, Any]]
    by_features: bool
    rates: Table[RateRow] | None = None
    kept: Mapping[str, KeptPatches] = {}
    differences: Sequence[Difference] = ()
    class_names: Sequence[str] = ()
    fair: Sequence[str] = ()


def describe(section: Section, comparison: Comparison, folders: Mapping[str, Path], *, length: str) -> None:
    """Adds the comparison to a section of a report.

    Args:
      folders: the run of each contestant.
      length: of each healing, see `length_of`.
    """
    rows = comparison.rows
    classes = (
        " The network has no classes: a linear head was fitted once to the dense features of the labelled training "
        "images, and reads the features of all."
        if comparison.by_features
        else ""
    )
    section.text(f"{_learned(length)} The table is of {rows[0].images} other images.{classes}")
    if comparison.fair:
        section.text(
            f"Rivals at about the FLOPs of the plans, healed for the same time: {', '.join(comparison.fair)}. A plan "
            "pays where it is more accurate than these and than Random at the same measured speed."
        )
    _not_compared(section, [row.name for row in rows])
    _not_healed(section, comparison.results)
    caption = (
        f"Agreement with the dense network, and accuracy: {spread.BRACKETS}. Differences from dense are paired by "
        "image. Speed-up over the dense network: median, and range over the rounds, all timed in turns."
    )
    section.table(rows.only(*COLUMNS), caption=caption)
    for value in ("accuracy", "agreement"):
        _against_speed(section, rows, value)
    _agreement_curves(section, folders, comparison.results)
    if comparison.rates:
        section.section("Before and after, by keep rate").table(
            comparison.rates, caption=f"The same file at every keep rate that it was healed for. {spread.BRACKETS}."
        )
    reporting.wall_clocks(section, comparison.results)
    plans_page.kept_patches(section, comparison.kept)
    if comparison.differences:
        section.text("Images on which a healed network still differs from the dense one:")
        captions = [_classes(difference, comparison.class_names) for difference in comparison.differences]
        section.gallery([upscale(difference.image) for difference in comparison.differences], captions)


def _against_speed(section: Section, rows: Table[Row], value: str) -> None:
    """Draws a column of intervals against the measured speed; nothing without one."""
    shares = {row.name: getattr(row, value) for row in rows if isinstance(getattr(row, value), Interval)}
    if not shares:
        return
    series = {row.name: ([row.speed.median], [shares[row.name].value]) for row in rows if row.name in shares}
    spans = {name: [(share.low, share.high)] for name, share in shares.items()}
    plot = plots.scatter_plot(
        series, "measured speed-up", value, pareto=("max", "max"), shares=True, intervals=spans, joined=False
    )
    section.figure(plot, f"{_finding(rows, value)}{plots.front_note(plot)}{plots.cut_note(plot)}")


def describe_healing(section: Section, healing: Healing, *, length: str) -> None:
    """Adds how networks were healed, whose comparison stands elsewhere, to a section of a report.

    Args:
      length: of each healing, see `length_of`.
    """
    section.text(
        f"{_learned(length)} The table of the test has each before and after. An image size is that of a network "
        "with the head of the dense one."
    )
    if healing.fair:
        section.text(
            f"Image sizes at about the FLOPs of the plans, healed for the same time: {', '.join(healing.fair)}."
        )
    _not_compared(section, healing.healed)
    _not_healed(section, healing.results)
    _agreement_curves(section, healing.folders, healing.results)
    reporting.wall_clocks(section, healing.results)


def length_of(config: Config) -> str:
    """How long each network is healed: steps, if they are given, else minutes."""
    return f"{config.steps} steps" if config.steps else f"{config.minutes:g} minutes"


def _learned(length: str) -> str:
    """What the networks of a comparison learned."""
    return (
        f"Each contestant learned for {length} to give the dense network's outputs "
        "on unlabelled images. Its weights are those of the best evaluation on a held-out tenth of the training "
        f"images, at most {MOST_HELD_OUT}, the first of which was before the first step."
    )


def _not_compared(section: Section, names: Iterable[str]) -> None:
    """Warns of baselines that no plan stands beside."""
    names = tuple(names)
    missing = [title for title, has_name in _BASELINES.items() if not any(map(has_name, names))]
    if missing:
        section.note(
            f"Not compared: {' and '.join(missing)}. Without them the table cannot show whether a plan pays.", "warning"
        )


def _not_healed(section: Section, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Warns of networks that stay as they were."""
    unchanged = [name for name, result in results.items() if result.get("best step") == 0]
    if unchanged:
        section.note(
            f"Not healed: {', '.join(unchanged)}. No evaluation was closer to the dense network than the first, so "
            "the weights stay as they were: give a lower --config.learning_rate, or more time.",
            "warning",
        )


def _agreement_curves(section: Section, folders: Mapping[str, Path], results: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws how each network came closer to the dense one."""
    for measure in ("agreement", "cosine"):
        curves = {name: _curve(folder, measure, results.get(name, {})) for name, folder in folders.items()}
        curves = {name: curve for name, curve in curves.items() if len(curve[0]) > 1}
        if curves:
            plot = plots.line_plot(curves, xlabel="step", ylabel=measure)
            subject = {"agreement": "predictions", "cosine": "features"}[measure]
            section.figure(plot, f"Agreement of the {subject} with the dense network's, on the held-out images.")


def _classes(difference: Difference, class_names: Sequence[str]) -> str:
    predicted, dense, truth = (
        class_names[number] if 0 <= number < len(class_names) else str(number)
        for number in (difference.predicted, difference.dense, difference.label)
    )
    true = f"; true: {truth}" if difference.label >= 0 else ""
    return f"{difference.name}: {predicted}; dense: {dense}{true}"


def _curve(folder: Path, measure: str, result: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    start = f"{measure} before"
    rows = [{"step": 0, measure: result[start]}] if start in result else []
    rows += [row for row in read_metrics(folder) if row["split"] == "eval" and measure in row]
    return [row["step"] for row in rows], [row[measure] for row in rows]


def _finding(rows: Table[Row], value: str) -> str:
    """Says which healed networks are as fast as, and no worse than, every other one; none where intervals overlap.

    A network may be as fast as another one if their ranges over the timing rounds overlap. NaN ends are not known.
    """
    dense, *healed = rows
    measured = [row for row in healed if isinstance(getattr(row, value), Interval)]
    faster = [row for row in measured if row.speed.faster]
    if not faster:
        return f"No healed network is clearly faster than {DENSE}."
    best = max(faster, key=lambda row: getattr(row, value).value)
    rivals = [row for row in faster if row is not best and not row.speed.high < best.speed.low]
    values = {row.name: getattr(row, value) for row in (best, *rivals)}
    of = f"networks that may be as fast as {best.name}, {best.speed.median:.2f} times the speed of dense"
    alone = "" if rivals else f"; no other network is as fast, {best.speed.median:.2f} times the speed of dense"
    against = ""
    if isinstance(dense.accuracy, Interval) and value == "accuracy":
        against = f" dense has {findings.with_interval(dense.accuracy)}."
    return f"{findings.finding(values, value, of=of)}{alone}.{against}"


def summary(comparison: Comparison) -> dict[str, Any]:
    """Returns the summary of a run."""
    return {
        row.name: " ".join(
            f"{name} {value.value:.1%}"
            for name, value in (("agreement", row.agreement), ("accuracy", row.accuracy))
            if isinstance(value, Interval)
        )
        + f" speed-up {row.speed.median:.2f}"
        for row in comparison.rows
    }
