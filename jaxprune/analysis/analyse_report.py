"""Tables, figures and pictures of networks under plans, for the report of `analyse`."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxprune.analysis.anchors import DISTANCES
from jaxprune.analysis.observed import Observed
from jaxprune.analysis.outcomes import CLASSIFIER, Answers, lost, name_of
from jaxprune.analysis.scorer_names import about_images
from jaxprune.bench.contestants import DENSE
from jaxprune.data.broken import read_or_next
from jaxprune.data.images import prepare
from jaxprune.data.source import Source
from jaxprune.reduction.radial_patterns import NORMS
from jaxprune.viz import plots, spread
from jaxprune.viz.pictures.layout import tile, upscale
from jaxprune.viz.pictures.text import label
from jaxprune.viz.pictures.token_groups import token_groups
from jaxprune.viz.report import Section

_ENOUGH = 10  # pairs: an interval by resampling fewer is too narrow
SHOWN, PLANS_SHOWN, CLASSES_SHOWN = 4, 12, 15
_DEVIATION = "± is the standard deviation between images (population)"

Rows = Sequence[Mapping[str, Any]]


class Tables(NamedTuple):
    """The rows of an analysis; each of them is a CSV file too."""

    plans: Rows
    rates: Rows
    methods: Rows
    radial: Rows
    networks: Rows
    heat_maps: Rows
    anchors: Rows
    proxies: Rows
    classes: Rows
    answers: Rows


def describe(
    section: Section,
    found: Sequence[Observed],
    tables: Tables,
    maps: Mapping[tuple[str, str], np.ndarray],
    answered: Answers | None,
    *,
    class_names: Sequence[str],
    sources: Mapping[str, Source],
    neighbours: int,
) -> None:
    """Adds all that was found to a section of a report.

    Args:
      section: the section.
      found: all members.
      tables: the rows.
      maps: what `pattern_tables.depth_maps` returned.
      answered: what `outcomes.answers` returned.
      class_names: of the data.
      sources: the images, by network.
      neighbours: that vote where there is no classifier.
    """
    many = len({observed.member.network for observed in found}) > 1
    section.text(_about(found, answered, neighbours))
    _costs(section.section("Accuracy and cost"), tables.plans, answered, class_names, many)
    if tables.rates:
        _rates(section.section("One method at several keep rates"), tables.rates, many)
    if tables.methods:
        _methods(section.section("Methods beside each other"), tables.methods, many)
    if tables.radial:
        _radial(section.section("Beside fixed radial patterns"), tables.radial, _varying(found))
    if tables.networks:
        _networks(section.section("One plan in several networks"), tables.networks)
    if maps:
        _heat_maps(section.section("How deep patches get"), maps, tables.heat_maps, found, many)
    if tables.anchors:
        _anchors(section.section("Do features and patterns stand for accuracy?"), tables, many)
    if answered is not None:
        _losses(section.section("What each plan loses"), found, tables, answered, class_names, sources, many)


def _about(found: Sequence[Observed], answered: Answers | None, neighbours: int) -> str:
    networks = {observed.member.network: observed.member for observed in found if observed.member.plan == DENSE}
    count = len(found[0]["index"])
    lines = [
        f"{len(found)} networks and plans on the same {count} held-out images. "
        + " ".join(about_images(member.model.preprocessing) for member in list(networks.values())[:1])
    ]
    if answered is None:
        lines.append("The images have no single class each: there is no accuracy here, only likeness to the dense one.")
    elif answered.by != CLASSIFIER:
        lines.append(
            f"No classifier for these classes: an image gets the class that the {neighbours} nearest other images vote "
            "for, by cosine between what the network pools of it under the plan and of them without. Of few images a "
            "class this accuracy is low; its differences count."
        )
    lines += [f"`{member.network}` is `{member.origin}`." for member in networks.values()]
    trained = [
        observed.member for observed in found if observed.member.origin != networks[observed.member.network].origin
    ]
    lines += [f"`{each.plan}` is `{each.origin}`, trained under `{each.model.plan.text}`." for each in trained]
    return "\n\n".join(lines)


def _costs(section: Section, rows: Rows, answered: Answers | None, class_names: Sequence[str], many: bool) -> None:
    value = "accuracy" if answered is not None else "cosine"
    points = {_shown(row, many): ([row["GFLOPs"]], [row[value]]) for row in rows if value in row}
    if points:
        options: dict[str, Any] = {"pareto": ("min", "max"), "shares": True}
        if answered is not None:
            options["reference"] = {"chance": 1 / len(class_names)}
        plot = plots.scatter_plot(points, "GFLOPs", value, **options)
        section.figure(plot, f"{_best(rows, value)} The grey line joins the best at each cost.{plots.cut_note(plot)}")
    caption = (
        f"n = {rows[0]['images']} images. `rows`: mean share of the patches that has a row after each step; `cosine`: "
        "mean cosine of pooled features with the dense network's."
    )
    if answered is not None:
        caption += (
            f" `accuracy`: {spread.BRACKETS}; `change` from the dense network, in brackets the 95 % interval (normal, "
            "paired by image); `agreement`: share of images with the dense network's answer; `lost` and `won`: images "
            "that only the dense network, or only the plan, gets right."
        )
    _table(section, spread.as_ranges(rows), caption, ".3g", highlight={value: "max"} if points else None)


def _best(rows: Rows, value: str) -> str:
    dense = next(row for row in rows if row["plan"] == DENSE)
    others = [row for row in rows if row["plan"] != DENSE and value in row]
    if not others:
        return f"{value.capitalize()} against cost."
    best = max(others, key=lambda row: row[value])
    show = (lambda row: f"{row[value]:.1%}") if value == "accuracy" else (lambda row: f"{row[value]:.3f}")
    chance = [row for row in others if row["plan"].startswith("random")]
    beside = f"; {chance[0]['plan']} has {show(chance[0])} with {chance[0]['GFLOPs']:.3g}" if chance else ""
    against = "" if value == "cosine" else f", the dense network {show(dense)} with {dense['GFLOPs']:.3g}"
    highest = f"{best['plan']} has the highest {value} of the plans: {show(best)} with {best['GFLOPs']:.3g} GFLOPs"
    return f"{highest}{against}{beside}."


def _rates(section: Section, rows: Rows, many: bool) -> None:
    for metric in ("IoA", "homogeneity"):
        own = [row for row in rows if metric in row]
        if not own:
            continue
        pairs = _grouped(own, ("network", "plan", "lower plan"))
        lines = {
            f"{_name(network, plan, many)} → {lower}": _line(steps, metric)
            for (network, plan, lower), steps in pairs.items()
        }
        reference = _bounds(own) if metric == "IoA" else None
        plot = plots.line_plot(lines, "step", metric, reference=reference, shares=True)
        last = max(row["step"] for row in own)
        high, low = (
            choose([row for row in own if row["step"] == last], key=lambda row: row[metric]) for choose in (max, min)
        )
        finding = f"After step {last}, {high['plan']} → {high['lower plan']} has {metric} {high[metric]:.2f}"
        finding += f" and {low['plan']} → {low['lower plan']} {low[metric]:.2f}" if low is not high else ""
        if metric == "IoA":
            finding += (
                f"; by chance it were {high['IoA chance']:.2f}, and {high['IoA bound']:.2f} is the lowest possible. It "
                "is the share of the patches kept at the lower rate that are kept at the higher one too"
            )
        else:
            finding += "; 1 means that the clusters of the higher rate lie inside of those of the lower one"
        section.figure(plot, f"{finding}. Means over {own[0]['images']} images.{plots.cut_note(plot)}")
    caption = f"Each keep rate against lower ones. {_DEVIATION}, n = {rows[0]['images']}."
    _table(section, _with_deviations(rows), caption)


def _bounds(rows: Rows) -> dict[str, tuple[list[float], list[float]]] | None:
    """The lines of the lowest IoA and of chance; None where pairs have different ones."""
    lines = {}
    for kind, name in (("bound", "lowest possible"), ("chance", "by chance")):
        steps = {
            step: {round(row[f"IoA {kind}"], 3) for row in own} for (step,), own in _grouped(rows, ("step",)).items()
        }
        if any(len(values) > 1 for values in steps.values()):
            return None
        lines[name] = (list(steps), [min(values) for values in steps.values()])
    return lines


def _methods(section: Section, rows: Rows, many: bool) -> None:
    for metric, what in (("IoU", "of the patches that are kept"), ("NMI", "of the clusters")):
        own = [row for row in rows if metric in row]
        for (network, *_), of_rate in _grouped(own, ("network", "kept")).items():
            last = max(row["step"] for row in of_rate)
            pairs = {(row["plan"], row["other plan"]): row for row in of_rate if row["step"] == last}
            names = list(dict.fromkeys(name for pair in pairs for name in pair))
            values = np.eye(len(names))
            for (one, other), row in pairs.items():
                i, j = names.index(one), names.index(other)
                values[i, j] = values[j, i] = row[metric]
            best = max(pairs, key=lambda pair: pairs[pair][metric])
            chance = f"; by chance it were {pairs[best]['IoU chance']:.2f}" if metric == "IoU" else ""
            where = f" in {network}" if many else ""
            section.figure(
                plots.matrix_plot(values, names),
                f"{metric} {what} after step {last}{where}: {best[0]} and {best[1]} are most alike, "
                f"{pairs[best][metric]:.2f}{chance}. Means over {of_rate[0]['images']} images; the order is that of "
                "hierarchical clustering.",
            )
    caption = f"Plans at one keep rate. `kept`: patches that they should leave. {_DEVIATION}, n = {rows[0]['images']}."
    _table(section, _with_deviations(rows), caption)


def _radial(section: Section, rows: Rows, varying: set[tuple[str, str]]) -> None:
    over = lambda row, norm: row[norm] - row[f"{norm} chance"]
    choices = [(row, norm) for row in rows if (row["network"], row["plan"]) in varying for norm in NORMS]
    finding = ""
    if choices:
        row, norm = max(choices, key=lambda choice: over(*choice))
        finding = (
            f" Furthest above chance is {row['plan']} at step {row['step']}: {row[norm]:.2f} with {norm}, where chance "
            f"has {row[f'{norm} chance']:.2f}."
        )
    _table(
        section,
        _with_deviations(rows),
        "IoU with the patches nearest the centre of the image, by three norms, as many as the plan keeps; `chance`: of "
        f"patches drawn by chance.{finding} {_DEVIATION}, n = {rows[0]['images']}.",
    )


def _networks(section: Section, rows: Rows) -> None:
    for metric in ("IoU", "NMI"):
        own = [row for row in rows if metric in row]
        if not own:
            continue
        lines = {
            f"{plan}: {one}, {other}": _line(steps, metric)
            for (plan, one, other), steps in _grouped(own, ("plan", "network", "other network")).items()
        }
        plot = plots.line_plot(lines, "step", metric, shares=True)
        high, low = (choose(own, key=lambda row: row[metric]) for choose in (max, min))
        section.figure(
            plot,
            f"{metric} of one plan in two networks: from {low[metric]:.2f} ({low['plan']}, step {low['step']}) to "
            f"{high[metric]:.2f} ({high['plan']}, step {high['step']}). Means over {own[0]['images']} images."
            f"{plots.cut_note(plot)}",
        )
    _table(section, _with_deviations(rows), f"One plan in two networks. {_DEVIATION}, n = {rows[0]['images']}.")


def _heat_maps(
    section: Section, maps: Mapping[tuple[str, str], np.ndarray], rows: Rows, found: Sequence[Observed], many: bool
) -> None:
    depth = max(observed.member.num_layers for observed in found)
    named = {f"{network}, {plan}" if many else plan: values for (network, plan), values in maps.items()}
    varying = _varying(found)
    spans = {name: float(np.ptp(maps[member])) for name, member in zip(named, maps, strict=True) if member in varying}
    finding = ""
    if spans:
        widest, flattest = (choose(spans, key=lambda name: spans[name]) for choose in (max, min))
        finding = f"{widest} prefers some places most, by {spans[widest]:.1f} blocks"
        finding += f", {flattest} least, by {spans[flattest]:.1f}. " if len(spans) > 1 else ". "
    section.figure(
        plots.map_grid(named, "blocks", (0, depth)),
        f"Blocks that a patch of each place goes through on average over {len(found[0]['index'])} images, of {depth}. "
        f"{finding}Patterns that look at no image, such as random, are the same for every image.",
    )
    if rows:
        _table(
            section,
            rows,
            "How alike these maps are: Spearman's correlation and shared mass (SIM) are 1, Jensen–Shannon "
            "divergence (JSD, bits) and earth mover's distance (EMD, patches) 0 for equal ones.",
        )


def _anchors(section: Section, tables: Tables, many: bool) -> None:
    rows = [row for row in tables.anchors if "accuracy difference" in row]
    last = {(row["network"], row["layer"]) for row in tables.proxies}
    for (network, method), own in _grouped(rows, ("network", "anchor method")).items():
        layer = max(row["layer"] for row in own)
        for metric in ("Procrustes", "IoU", "NMI"):
            pairs = [row for row in own if row["layer"] == layer and np.isfinite(row[metric])]
            if len(pairs) < 3 or (network, layer) not in last:
                continue
            points = {row["plan"]: ([row[metric]], [row["accuracy difference"]]) for row in pairs}
            where = f" in {network}" if many else ""
            section.figure(
                plots.scatter_plot(points, f"{metric}, block {layer}", "accuracy difference"),
                f"{_correlation(tables.proxies, network, method, layer, metric)} Accuracy of {method}{where} minus "
                f"that of each plan against {metric}{' distance of features' if metric in DISTANCES else ''}; a point "
                f"is a plan, n = {pairs[0]['images']} images.",
            )
    if tables.proxies:
        _table(
            section,
            spread.as_ranges(tables.proxies),
            "Rank correlations between a metric and the difference in accuracy from the anchor, a pair a plan; "
            "in brackets the 95 % interval (bootstrap over pairs), `p` that both are unrelated. A good proxy is near 1 "
            f"for distances ({', '.join(DISTANCES)}) and near -1 for IoU and NMI. "
            f"Intervals of fewer than {_ENOUGH} pairs are too narrow.",
            ".2f",
        )
    deepest = {
        network: max(row["layer"] for row in own) for (network,), own in _grouped(tables.anchors, ("network",)).items()
    }
    _table(
        section,
        [
            {name: value for name, value in row.items() if name != "anchor method"}
            for row in tables.anchors
            if row["layer"] == deepest[row["network"]]
        ],
        "Every plan beside its anchors: distances of features behind the last block (0 = alike; blocks count from 0), "
        "IoU and NMI of patterns; other blocks are in `anchors.csv`. PWCCA and SVCCA need more images than features. "
        f"n = {tables.anchors[0]['images']} images.",
    )


def _correlation(rows: Rows, network: str, method: str, layer: int, metric: str) -> str:
    for row in rows:
        if (row["network"], row["anchor"], row["layer"], row["metric"]) == (network, method, layer, metric):
            low, high = row["Spearman low"], row["Spearman high"]
            few = row["pairs"] < _ENOUGH
            crosses = ", too few to tell" if few else " and may be none" if low <= 0 <= high else ""
            value = f"{row['Spearman']:.2f} [{low:.2f}, {high:.2f}]"
            return f"Spearman's correlation is {value} over {row['pairs']} plans{crosses}."
    return ""


def _losses(
    section: Section,
    found: Sequence[Observed],
    tables: Tables,
    answered: Answers,
    class_names: Sequence[str],
    sources: Mapping[str, Source],
    many: bool,
) -> None:
    shown = 0
    for observed in found:
        member, base = observed.member, (observed.member.network, DENSE)
        places = lost(answered, name_of(observed), base) if member.plan != DENSE else np.zeros(0, int)
        if not len(places) or not member.layers or len(member.grids[-1]) != 2 or shown == PLANS_SHOWN:
            continue
        shown += 1
        chosen = places[np.arange(min(SHOWN, len(places))) * len(places) // min(SHOWN, len(places))]
        rows, cells = observed["assign_" + str(len(member.layers) - 1)], []
        indices, answers = observed["index"], answered.predictions[name_of(observed)]
        for place in map(int, chosen):
            example = read_or_next(sources[member.network], int(indices[place]))
            image = upscale(prepare(example["image"], member.model.preprocessing))
            picture = token_groups(image, rows[place], member.grids[-1][:2])  # pyright: ignore[reportArgumentType]
            cells.append(label(picture, f"{class_names[answered.labels[place]]}: {class_names[answers[place]]}"))
        section.figure(
            tile(cells, SHOWN, pad=6),
            f"{_name(member.network, member.plan, many)} loses {len(places)} of the {int(answered.right(base).sum())} "
            f"images that the dense network gets right{'' if len(chosen) == len(places) else ', some of them here'}. "
            "Each with what is left after the last step, its class and, behind the colon, the answer under the plan. "
            "Dropped patches are grey with a cross; patches merged into one token have a border of one colour.",
        )
    plans = [name for name in tables.classes[0] if name not in ("network", "class", "images", "accuracy, dense")]
    if plans:
        _table(
            section,
            tables.classes[:CLASSES_SHOWN],
            f"The {min(CLASSES_SHOWN, len(tables.classes))} of {len(tables.classes)} classes that lose most "
            "over all plans: dense accuracy, and how each plan changes it. `images` is n of the class; where it is "
            "small, one image makes a large difference. All classes are in `classes.csv`, all "
            "answers in `answers.csv`.",
            ".2f",
        )


def _grouped(rows: Rows, columns: Sequence[str]) -> dict[tuple, list[Mapping[str, Any]]]:
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def _line(steps: Rows, column: str) -> tuple[list[float], list[float]]:
    return [row["step"] for row in steps], [row[column] for row in steps]


def _table(section: Section, rows: Rows, caption: str, spec: str = ".3f", **options: Any) -> None:
    """Adds a table; what has one network names none, and only what is not whole has decimals."""
    networks = {row.get(name) for row in rows for name in ("network", "other network")} - {None}
    hidden = ("network", "other network") if len(networks) < 2 else ()
    rows = [{name: value for name, value in row.items() if name not in hidden} for row in rows]
    parts = lambda value: value if isinstance(value, tuple) else (value,)
    broken = {name for row in rows for name, value in row.items() if any(isinstance(v, float) for v in parts(value))}
    section.table(rows, caption=caption, formats=dict.fromkeys(sorted(broken), spec), **options)


def _varying(found: Sequence[Observed]) -> set[tuple[str, str]]:
    """The plans whose patterns differ from image to image: not the radial ones, and not Random."""
    steps = lambda observed: observed.patterns.masks if observed.keeps else observed.patterns.assign
    return {name_of(observed) for observed in found if any((step != step[:1]).any() for step in steps(observed))}


def _with_deviations(rows: Rows) -> list[dict[str, Any]]:
    """Rows in which a mean and the deviation between images are one cell."""
    return [
        {
            name: (value, row[f"{name} std"]) if f"{name} std" in row else value
            for name, value in row.items()
            if not name.endswith(" std")
        }
        for row in rows
    ]


def _shown(row: Mapping[str, Any], many: bool) -> str:
    return _name(row["network"], row["plan"], many)


def _name(network: str, plan: str, many: bool) -> str:
    return f"{network}, {plan}" if many else plan
