"""Tables, plots and pictures of a classifier under scorers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxprune.evaluate.collectors.pruning import Pruned, num_kept, num_scored
from jaxprune.measures.insertion_deletion import area, curves
from jaxprune.reduction import DENSE
from jaxprune.report import Section, plots, spread
from jaxprune.report.keep_slider import Scored, keep_slider
from jaxprune.report.pictures.film_strip import film_strip
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.text import label
from jaxprune.report.pictures.token_groups import token_groups
from jaxprune.report.scorer_names import about_images, short_names
from jaxprune.scoring import Scorer
from jaxprune.scoring.parts.resized_inputs import ResizedInputs

Rows = Sequence[Mapping[str, Any]]
_CONFIDENCE = "confidence in the true class"


class Setting(NamedTuple):
    """The setting of a pruning study.

    Attributes:
      model: the dense classifier.
      class_names: of its classes.
      scorers: by name.
      size: (height, width) of the images, or (frames, height, width) of clips.
      keep_rate: keep rate of speeds and pictures.
      networks: a sentence on the networks that the scorers read; see `scorer_names.about_scorers`.
    """

    model: Any
    class_names: Sequence[str]
    scorers: Mapping[str, Scorer]
    size: tuple[int, ...]
    keep_rate: float
    networks: str = ""


def by_scorer(
    rows: Rows, found: Pruned, speeds: Mapping[str, Mapping[str, float]], model: Any, keep_rate: float
) -> list[dict[str, Any]]:
    """Returns a row for the dense network and each scorer: cost and speed at `keep_rate`, areas under curves.

    Args:
      rows: what `pruning.accuracies` returned.
      found: what `pruning.measure` returned.
      speeds: what `bench.scorers.speeds` returned.
      model: the dense classifier.
      keep_rate: keep rate of the costs and speeds.
    """
    result = []
    for row in rows:
        name = row["scorer"]
        if name == DENSE or row["keep rate"] == keep_rate:
            areas = {curve: area(x, y) for curve, (x, y) in _curves(found, name, num_scored(model)).items()}
            implied = rows[0]["GFLOPs"] / row["GFLOPs"]
            result.append(
                {"scorer": name, "GFLOPs": row["GFLOPs"], "FLOP-implied": implied, **speeds.get(name, {}), **areas}
            )
    return result


def as_published(rows: Rows, summary: Rows) -> list[dict[str, Any]]:
    """Returns PaPr's Tab. III: accuracy of each scorer by keep rate, with the areas under its curves and its speed."""
    dense, *others = rows
    columns = {name: {"z=1": dense["accuracy"]} for name in dict.fromkeys(row["scorer"] for row in others)}
    for row in others:
        columns[row["scorer"]][f"z={row['keep rate']:g}"] = row["accuracy"]
    wanted = ("insertion", "deletion", "speed-up", "speed-up low", "speed-up high")
    # A single round has no range.
    known = lambda row: {name: row[name] for name in wanted if name in row and not np.isnan(row[name])}
    more = {row["scorer"]: known(row) for row in summary}
    return [{"scorer": name, **values, **more[name]} for name, values in columns.items()]


def finding(rows: Rows, keep_rate: float) -> str:
    """Returns a sentence on the most accurate scorer at a keep rate, compared with Random and the dense network."""
    at = {row["scorer"]: row["accuracy"] for row in rows[1:] if row["keep rate"] == keep_rate}
    best = max(at, key=lambda name: at[name])
    randoms = [name for name in at if name.partition(":")[0] == "random" and name != best]
    others = [*(f"random {at[name]:.1%}" for name in randoms[:1]), f"the dense network {rows[0]['accuracy']:.1%}"]
    found = f"{short_names(at)[best]} has an accuracy of {at[best]:.1%}; {', '.join(others)}"
    return f"At keep rate {keep_rate:g}, {found}."


def pictures(setting: Setting, found: Pruned) -> np.ndarray:
    """Draws images in rows: whole, then with kept patches, with the confidence in the true class (PaPr, Fig. 4).

    Clips are drawn as film strips, one below the other.
    """
    model, cells, count = setting.model, [], num_kept(setting.model, setting.keep_rate)
    names = short_names(setting.scorers)
    clips = len(model.grid) == 3
    for shown in found.shown:
        image = film_strip(shown.image, None, model.grid) if clips else upscale(shown.image)
        name = setting.class_names[found.labels[shown.place]]
        confidence = lambda scorer, patches, place=shown.place: f"{found.confidences[scorer, patches][place]:.0%}"
        cells.append(label(image, f"{name}: {confidence(DENSE, num_scored(model))}"))
        for text, scorer in setting.scorers.items():
            ids = np.asarray(scorer.select(jnp.asarray(shown.scores[text][None]), count))[0]
            assign = np.full(num_scored(model), -1)
            assign[ids] = ids
            caption = f"{names[text]}: {confidence(text, count)}"
            strip = lambda image=shown.image, kept=assign >= 0: film_strip(image, kept, model.grid)
            cells.append(label(strip() if clips else token_groups(image, assign, model.entrance().grid), caption))
    return tile(cells, 1 if clips else 1 + len(setting.scorers), pad=6)


def describe(section: Section, setting: Setting, rows: Rows, summary: Rows, found: Pruned, *, timing: str = "") -> None:
    """Adds the results to a section of a report.

    Args:
      section: the section.
      setting: what was pruned.
      rows: what `pruning.accuracies` returned.
      summary: what `by_scorer` returned.
      found: what `pruning.measure` returned.
      timing: how speeds were measured; empty if they were not.
    """
    for height, width in {scorer.size for scorer in setting.scorers.values() if isinstance(scorer, ResizedInputs)}:
        section.text(
            f"Scorers that read a ConvNet see the images resized from {setting.size[-2]} × {setting.size[-1]} to "
            f"{height} × {width} pixels; their cost is that of this size."
        )
    rates = dict.fromkeys(row["keep rate"] for row in rows[1:])
    section.table(
        spread.as_ranges(as_published(rows, summary)),
        caption="Accuracy by keep rate (`z`). `insertion` and `deletion` are areas under the curves below."
        + (f" `speed-up` is that at keep rate {setting.keep_rate:g}, {timing}" if timing else ""),
        highlight={f"z={rate:g}": "max" for rate in rates},
        formats=".3g",
    )
    _accuracy(section, setting, rows)
    _insertion_deletion(section, setting, found)
    if timing:
        _speed(section, summary, f"Cost and speed at keep rate {setting.keep_rate:g}, including the scorer's: {timing}")
    points = {name: (cost, _lines(rows, "accuracy")[name][1]) for name, (_, cost) in _lines(rows, "GFLOPs").items()}
    options = {"log_x": True, "reference": _chance(setting), "shares": True}
    plot = plots.scatter_plot(points, "GFLOPs", "accuracy", **options)
    names, costs = short_names(setting.scorers), {row["scorer"]: row["GFLOPs"] for row in summary}
    cheapest = min(names, key=lambda text: costs[text])
    section.figure(
        plot,
        f"At keep rate {setting.keep_rate:g}, including the scorer's cost, {names[cheapest]} is the cheapest with "
        f"{costs[cheapest]:.3g} GFLOPs; the dense network costs {rows[0]['GFLOPs']:.3g}. Lines join the keep "
        f"rates of a scorer.{plots.cut_note(plot)}",
    )
    dropped = "tubes are dark" if len(setting.size) == 3 else "patches are grey with a cross"
    section.figure(
        pictures(setting, found),
        f"The patches that scorers keep at keep rate {setting.keep_rate:g}, and the resulting probability of the "
        f"true class; dropped {dropped}. {setting.networks} "
        f"{about_images(setting.model.preprocessing)}".strip(),
    )
    captions = [setting.class_names[int(found.labels[shown.place])] for shown in found.shown]
    shown = lambda image: upscale(image) if image.ndim == 3 else image
    slides = [Scored(name, shown(s.image), s.scores) for name, s in zip(captions, found.shown, strict=True)]
    keep_slider(section, slides, setting.model.entrance().grid, keep_rate=setting.keep_rate)
    section.table(
        spread.as_ranges(rows),
        caption=f"All keep rates. `accuracy`: {spread.BRACKETS} over {len(found.labels)} images. `agreement`: share of "
        "images for which the dense network predicts the same class; `confidence`: mean probability of the true class; "
        "`surer`: share of images for which it is higher than the dense network's.",
        formats=".3g",
    )


def _chance(setting: Setting) -> dict[str, float]:
    return {"chance": 1 / len(setting.class_names)}


def _accuracy(section: Section, setting: Setting, rows: Rows) -> None:
    low, high = _lines(rows, "low"), _lines(rows, "high")
    bands: dict[str, tuple[list[float], list[float]]] = {name: (low[name][1], high[name][1]) for name in low}
    rates, (chance,) = sorted({row["keep rate"] for row in rows}), _chance(setting).values()
    reference = {"chance": ([rates[0], rates[-1]], [chance, chance])}
    options = {"bands": bands, "reference": reference, "shares": True}
    plot = plots.line_plot(_lines(rows, "accuracy"), "keep rate", "accuracy", **options)
    section.figure(
        plot, f"{finding(rows, setting.keep_rate)} Bands are 95 % intervals (Wilson) over images.{plots.cut_note(plot)}"
    )
    plot = plots.line_plot(_lines(rows, "confidence"), "keep rate", _CONFIDENCE, reference=reference, shares=True)
    section.figure(
        plot,
        f"Mean probability of the true class: {rows[0]['confidence']:.1%} for the dense network, at keep rate 1."
        f"{plots.cut_note(plot)}",
    )


def _speed(section: Section, summary: Rows, caption: str) -> None:
    section.table(spread.as_ranges(summary), caption=caption, highlight={"images/s": "max"}, formats=".3g")
    slower = [row["scorer"] for row in summary if row["speed-up"] < 1]
    if slower:
        section.note(f"Slower than the dense network on this machine: {', '.join(slower)}.", kind="warning")


def _insertion_deletion(section: Section, setting: Setting, found: Pruned) -> None:
    drawn = {name: _curves(found, name, num_scored(setting.model)) for name in setting.scorers}
    chance, names = _chance(setting)["chance"], short_names(setting.scorers)
    for curve, xlabel, better, word in (
        ("insertion", "share of patches there", max, "highest"),
        ("deletion", "share of patches removed", min, "lowest"),
    ):
        lines = {name: both[curve] for name, both in drawn.items() if both}
        if lines:
            areas = {name: area(x, y) for name, (x, y) in lines.items()}
            best = better(areas, key=lambda name: areas[name])
            plot = plots.line_plot(
                {names[name]: line for name, line in lines.items()},
                xlabel,
                _CONFIDENCE,
                reference={"chance": ([0, 1], [chance, chance])},
                shares=True,
            )
            section.figure(
                plot,
                f"{curve.capitalize()}, best patches first: {names[best]} has the {word} area under its curve, "
                f"{areas[best]:.2f}; {'high' if better is max else 'low'} is good.{plots.cut_note(plot)}",
            )


def _curves(found: Pruned, scorer: str, num_patches: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Insertion and deletion curves of a scorer; {} if they were not measured."""
    if not any(name == scorer for name, _ in found.removed):
        return {}
    return curves(found.confidences, found.removed, found.confidences[DENSE, num_patches], scorer, num_patches)


def _lines(rows: Rows, column: str) -> dict[str, tuple[list[float], list[float]]]:
    """A column against the keep rate, by scorer; all lines start at the dense network."""
    dense, *others = rows
    names = short_names(dict.fromkeys(row["scorer"] for row in others))
    lines = {name: ([1.0], [dense[column]]) for name in names.values()}
    for row in others:
        lines[names[row["scorer"]]][0].append(row["keep rate"])
        lines[names[row["scorer"]]][1].append(row[column])
    return lines
