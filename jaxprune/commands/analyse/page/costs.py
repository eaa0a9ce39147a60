"""Accuracy against cost."""

import math
from collections.abc import Mapping
from typing import Any

from jaxprune.commands.analyse.page.parts import Analysis, Rows, add_table, as_series, grouped, plan_name
from jaxprune.commands.analyse.tables.outcomes import MemberPredictions, name_of
from jaxprune.evaluate.collectors.hard_images import HARD, RESCUED
from jaxprune.measures.intervals import Interval
from jaxprune.measures.leaders import leaders
from jaxprune.reduction import DENSE
from jaxprune.report import Section, findings, plots, spread

# With more points than this, their names overlap: then methods are named instead of plans.
_LABELLED = 12


def describe(section: Section, rows: Rows, analysis: Analysis) -> None:
    """Adds cost and accuracy of each plan, the rows of `outcomes.plan_rows`."""
    outcome, several_networks = analysis.outcome, analysis.several_networks
    methods = {name_of(observed): observed.member.method for observed in analysis.observations}
    value = outcome.measure if outcome is not None else "cosine"
    # The dense network last, so that methods have the same colours in all figures.
    measured = sorted((row for row in rows if value in row), key=lambda row: row["plan"] == DENSE)
    crowded = len(measured) > _LABELLED
    of = lambda row: methods[row["network"], row["plan"]] if crowded else row["plan"]
    names = [plan_name(row["network"], of(row), several_networks) for row in measured]
    points = as_series(measured, ("GFLOPs", value), names)
    if points:
        options: dict[str, Any] = {"pareto": ("min", "max"), "shares": True}
        if crowded:  # a series is a method: its points have the names of plans
            plans: dict[str, list[str]] = {}
            for name, row in zip(names, measured, strict=True):
                plans.setdefault(name, []).append(plan_name(row["network"], row["plan"], several_networks))
            options["tips"] = plans
        if isinstance(outcome, MemberPredictions):
            options["reference"] = {"chance": 1 / len(analysis.class_names)}
        plot = plots.scatter_plot(points, "GFLOPs", value, **options)
        joined = " Thin lines join the plans of a method." if crowded else ""
        section.figure(plot, f"{_finding(rows, value)}{plots.front_note(plot)}{joined}{plots.cut_note(plot)}")
    caption = (
        f"n = {rows[0]['images']} images. `rows`: rows after each step as a share of the patches, mean over images; "
        "`cosine`: mean cosine of pooled features with the dense network's, and its 95 % interval (normal) over images."
    )
    if isinstance(outcome, MemberPredictions):
        caption += (
            f" `accuracy`: {spread.BRACKETS}; `change` from the dense network, with its 95 % interval (Agresti and "
            "Min, paired by image); `agreement`: share of images with the dense network's prediction; `lost` and "
            "`won`: images that only the dense network, or only the plan, gets right."
        )
        if any(HARD in row for row in rows):
            caption += (
                f" `{RESCUED}`: of the `{HARD}`, which the dense network gets wrong on "
                "all smaller images at about the FLOPs of the plans: what only tokens can give."
            )
    elif outcome is not None:
        caption += (
            " `mAP`: mean average precision over the classes; `change` from the dense network; with 95 % "
            "intervals (jackknife over images; `change` is paired by image)."
        )
    add_table(section, spread.as_ranges(rows), caption, ".3g", highlight={value: "max"} if points else None)


def _finding(rows: Rows, value: str) -> str:
    """Says of each network which plan has the highest value, if one stands out, beside Random and the dense network."""
    sentences = []
    for (network,), of_network in grouped(rows, ("network",)).items():
        measured = {row["plan"]: row for row in of_network if value in row}
        plans = {name: interval(row, value) for name, row in measured.items() if name != DENSE}
        if not plans:
            continue
        spec = ".3f" if value == "cosine" else ".1%"
        show = lambda name, row, spec=spec: f"{name} has {row[value]:{spec}} with {row['GFLOPs']:.3g}"
        level = leaders(plans)
        cheapest = min(level, key=lambda name: measured[name]["GFLOPs"])
        cheapest_note = f"; the cheapest of them is {cheapest}" if len(level) > 1 else ""
        beside = [name for name in plans if name.startswith("random") and name != cheapest][:1]
        beside += [] if value == "cosine" else [DENSE] * (DENSE in measured)
        against = "".join(f"; {show(name, measured[name])}" for name in beside)
        of = "plans" if len({row["network"] for row in rows}) == 1 else f"plans of {network}"
        sentence = findings.finding(plans, value, of=of, spec=spec)
        sentences.append(f"{sentence}{cheapest_note}, with {measured[cheapest]['GFLOPs']:.3g} GFLOPs{against}.")
    return " ".join(sentences) or f"{value.capitalize()} against cost."


def interval(row: Mapping[str, Any], value: str) -> Interval:
    """Returns a value of a row with its interval; `low` and `high` are of the accuracy."""
    ends = ("low", "high") if value == "accuracy" else (f"{value} low", f"{value} high")
    return Interval(row[value], *(row.get(end, math.nan) for end in ends))
