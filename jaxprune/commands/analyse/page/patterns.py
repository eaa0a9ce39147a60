"""Patterns of kept and merged patches: across keep rates, methods and networks, and against radial patterns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxprune.commands.analyse.page.parts import DEVIATION, Rows, add_table, grouped, line, plan_name, with_deviations
from jaxprune.measures.intervals import Interval, mean_interval
from jaxprune.measures.overlap import RESCALED, over_chance
from jaxprune.reduction.parts.radial_patterns import NORMS
from jaxprune.report import Section, findings, plots


def rates(section: Section, rows: Rows, several_networks: bool) -> None:
    """Adds the overlap of each method with itself at lower keep rates."""
    for metric in ("IoA", "homogeneity"):
        measurements = [row for row in rows if metric in row]
        if not measurements:
            continue
        lines, several = rate_lines(measurements, metric, several_networks)
        label = f"{metric} ({RESCALED})" if several and metric == "IoA" else metric
        reference = _bounds(measurements) if metric == "IoA" and not several else None
        within = all(0 <= value <= 1 for _, values in lines.values() for value in values)
        plot = plots.line_plot(lines, "step", label, reference=reference, shares=within)
        last = max(row["step"] for row in measurements)
        at_last = [row for row in measurements if row["step"] == last]
        alike = {
            f"{plan_name(row['network'], row['plan'], several_networks)} → {row['lower plan']}": _interval(row, metric)
            for row in at_last
        }
        finding = f"After step {last}. {findings.finding(alike, metric, of='pairs of keep rates', spec='.2f')}"
        if metric == "IoA":
            chance, bound = (_ends([row[f"IoA {kind}"] for row in at_last]) for kind in ("chance", "bound"))
            finding += (
                f"; by chance it would be {chance}, and {bound} is the lowest possible. It is the share of the patches "
                "kept at the lower rate that are also kept at the higher one"
            )
        else:
            finding += "; 1 means that the clusters of the higher rate lie inside those of the lower one"
        line_note = " Each line is the mean over all pairs of keep rates of a method." if several else ""
        section.figure(
            plot, f"{finding}. Means over {measurements[0]['images']} images.{line_note}{plots.cut_note(plot)}"
        )
    caption = f"Each keep rate against lower ones. {DEVIATION}, n = {rows[0]['images']}."
    add_table(section, with_deviations(rows), caption)


def rate_lines(
    rows: Rows, metric: str, several_networks: bool
) -> tuple[dict[str, tuple[list[float], list[float]]], bool]:
    """The lines of the overlap across keep rates, and whether a line is the mean over several pairs of rates.

    By chance, pairs overlap by different amounts, so a mean is over rescaled overlaps.
    """
    pairs = grouped(rows, ("network", "plan", "lower plan"))
    by_method = grouped(rows, ("network", "method"))
    if len(pairs) == len(by_method):
        name = lambda network, plan, lower: f"{plan_name(network, plan, several_networks)} → {lower}"
        return {name(*key): line(steps, metric) for key, steps in pairs.items()}, False
    value = lambda row: over_chance(row["IoA"], row["IoA chance"]) if metric == "IoA" else row[metric]
    lines = {}
    for (network, method), method_rows in by_method.items():
        steps = grouped(method_rows, ("step",))
        values = {step: [value(row) for row in of_step] for (step,), of_step in steps.items()}
        means = {step: float(np.nanmean(rates)) for step, rates in values.items() if np.isfinite(rates).any()}
        lines[plan_name(network, method, several_networks)] = (list(means), list(means.values()))
    return lines, True


def _bounds(rows: Rows) -> dict[str, tuple[list[float], list[float]]] | None:
    """The lines of the lowest IoA and of chance; None if they differ between pairs."""
    lines = {}
    for kind, name in (("bound", "lowest possible"), ("chance", "by chance")):
        steps = {
            step: {round(row[f"IoA {kind}"], 3) for row in step_rows}
            for (step,), step_rows in grouped(rows, ("step",)).items()
        }
        if any(len(values) > 1 for values in steps.values()):
            return None
        lines[name] = (list(steps), [min(values) for values in steps.values()])
    return lines


def methods(section: Section, rows: Rows, several_networks: bool) -> None:
    """Adds the overlap of methods at one keep rate."""
    for metric, subject in (("IoU", "of the kept patches"), ("NMI", "of the clusters")):
        measurements = [row for row in rows if metric in row]
        for (network, *_), of_rate in grouped(measurements, ("network", "kept")).items():
            last = max(row["step"] for row in of_rate)
            pairs = {(row["plan"], row["other plan"]): row for row in of_rate if row["step"] == last}
            names = list(dict.fromkeys(name for pair in pairs for name in pair))
            values = np.eye(len(names))
            for (first, second), row in pairs.items():
                i, j = names.index(first), names.index(second)
                values[i, j] = values[j, i] = row[metric]
            alike = {f"{first} and {second}": _interval(row, metric) for (first, second), row in pairs.items()}
            chances = [row["IoU chance"] for row in pairs.values()] if metric == "IoU" else []
            chance = f"; by chance it would be {_ends(chances)}" if chances else ""
            where = f" in {network}" if several_networks else ""
            sentence = findings.finding(alike, metric, of="pairs", spec=".2f")
            section.figure(
                plots.matrix_plot(values, names),
                f"{metric} {subject} after step {last}{where}. {sentence}{chance}. Means over {of_rate[0]['images']} "
                "images; rows are ordered by hierarchical clustering.",
            )
    caption = (
        f"Plans at one keep rate. `kept`: number of patches according to the plan. {DEVIATION}, n = "
        f"{rows[0]['images']}."
    )
    add_table(section, with_deviations(rows), caption)


def radial(section: Section, rows: Rows, differing: set[tuple[str, str]], several_networks: bool) -> None:
    """Adds the overlap of plans with fixed radial patterns; the finding only considers those in `differing`."""
    above = {
        f"{plan_name(row['network'], row['plan'], several_networks)} at step {row['step']} with {norm}": _interval(
            row, norm, row[f"{norm} chance"]
        )
        for row in rows
        if (row["network"], row["plan"]) in differing
        for norm in NORMS
    }
    finding = f" {findings.finding(above, 'IoU above chance', spec='.2f')}." if above else ""
    add_table(
        section,
        with_deviations(rows),
        "IoU with the same number of patches nearest the centre of the image, by three norms; `chance`: of "
        f"randomly drawn patches.{finding} {DEVIATION}, n = {rows[0]['images']}.",
    )


def _ends(values: Sequence[float]) -> str:
    """The lowest and the highest of some values, or the one where they are shown alike."""
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _interval(row: Mapping[str, Any], metric: str, chance: float = 0.0) -> Interval:
    """Returns a mean over images above chance, with its interval."""
    return mean_interval(row[metric] - chance, row[f"{metric} std"], row["images"])


def networks(section: Section, rows: Rows) -> None:
    """Adds the overlap of one plan in two networks."""
    for metric in ("IoU", "NMI"):
        measurements = [row for row in rows if metric in row]
        if not measurements:
            continue
        lines = {
            f"{plan}: {first}, {second}": line(steps, metric)
            for (plan, first, second), steps in grouped(measurements, ("plan", "network", "other network")).items()
        }
        plot = plots.line_plot(lines, "step", metric, shares=True)
        values = [row[metric] for row in measurements]
        section.figure(
            plot,
            f"{metric} of one plan in two networks: from {min(values):.2f} to {max(values):.2f}. Means over "
            f"{measurements[0]['images']} images.{plots.cut_note(plot)}",
        )
    add_table(section, with_deviations(rows), f"One plan in two networks. {DEVIATION}, n = {rows[0]['images']}.")
