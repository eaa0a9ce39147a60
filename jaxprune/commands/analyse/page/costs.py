"""Accuracy against cost."""

from typing import Any

from jaxprune.commands.analyse.page.parts import Analysis, Rows, add_table, as_series, plan_name
from jaxprune.commands.analyse.tables.outcomes import Answers, name_of
from jaxprune.reduction import DENSE
from jaxprune.report import Section, plots, spread

# With more points than this, their names overlap: then methods are named instead of plans.
_LABELLED = 12


def describe(section: Section, rows: Rows, analysis: Analysis) -> None:
    """Adds cost and accuracy of each plan, the rows of `outcomes.plan_rows`."""
    answers, several_networks = analysis.answers, analysis.several_networks
    methods = {name_of(observed): observed.member.method for observed in analysis.observations}
    value = answers.measure if answers is not None else "cosine"
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
        if isinstance(answers, Answers):
            options["reference"] = {"chance": 1 / len(analysis.class_names)}
        plot = plots.scatter_plot(points, "GFLOPs", value, **options)
        joined = " Thin lines join the plans of a method." if crowded else ""
        section.figure(plot, f"{_best(rows, value)}{plots.front_note(plot)}{joined}{plots.cut_note(plot)}")
    caption = (
        f"n = {rows[0]['images']} images. `rows`: rows after each step as a share of the patches, mean over images; "
        "`cosine`: mean cosine of pooled features with the dense network's."
    )
    if isinstance(answers, Answers):
        caption += (
            f" `accuracy`: {spread.BRACKETS}; `change` from the dense network, with its 95 % interval (Agresti and "
            "Min, paired by image); `agreement`: share of images with the dense network's prediction; `lost` and "
            "`won`: images that only the dense network, or only the plan, gets right."
        )
    elif answers is not None:
        caption += (
            " `mAP`: mean average precision over the classes; `change` from the dense network; with 95 % "
            "intervals (jackknife over images; `change` is paired by image)."
        )
    add_table(section, spread.as_ranges(rows), caption, ".3g", highlight={value: "max"} if points else None)


def _best(rows: Rows, value: str) -> str:
    plan_rows = [row for row in rows if row["plan"] != DENSE and value in row]
    if not plan_rows:
        return f"{value.capitalize()} against cost."
    best = max(plan_rows, key=lambda row: row[value])
    # Compared within its network.
    dense = next(row for row in rows if row["plan"] == DENSE and row["network"] == best["network"])
    plan_rows = [row for row in plan_rows if row["network"] == best["network"]]
    show = (lambda row: f"{row[value]:.1%}") if value in ("accuracy", "mAP") else (lambda row: f"{row[value]:.3f}")
    chance = [row for row in plan_rows if row["plan"].startswith("random") and row is not best]
    beside = f"; {chance[0]['plan']} has {show(chance[0])} with {chance[0]['GFLOPs']:.3g}" if chance else ""
    against = "" if value == "cosine" else f", the dense network {show(dense)} with {dense['GFLOPs']:.3g}"
    highest = f"{best['plan']} has the highest {value} of the plans: {show(best)} with {best['GFLOPs']:.3g} GFLOPs"
    return f"{highest}{against}{beside}."
