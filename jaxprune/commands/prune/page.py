"""Tables, plots and pictures of a classifier under scorers."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxprune.bench.scorers import ScorerSpeed
from jaxprune.bench.timing import OverRounds
from jaxprune.evaluate.collectors.pruning import Pruned, PrunedRow, num_kept, num_scored
from jaxprune.measures.insertion_deletion import area, curves
from jaxprune.measures.intervals import Interval, normal_interval
from jaxprune.reduction import DENSE
from jaxprune.report import Section, findings, plots, spread
from jaxprune.report.keep_slider import Scored, keep_slider
from jaxprune.report.pictures.film_strip import film_strip
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.text import label
from jaxprune.report.pictures.token_groups import token_groups
from jaxprune.report.scorer_names import about_images, short_names
from jaxprune.report.table import Table, column
from jaxprune.scoring import Scorer
from jaxprune.scoring.parts.resized_inputs import ResizedInputs

_CONFIDENCE = "confidence in the true class"
# Of the table of speeds, what it is read for first: a narrow page shows the rest behind a scroll bar.
_COLUMNS = ("scorer", "speed_up", "images_per_second", "gflops", "implied", "scoring", "insertion", "deletion")


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScorerRow:
    """The dense network, or a scorer at one keep rate: cost, speed if measured, areas under the curves if any."""

    scorer: str = column("scorer")
    gflops: float = column("GFLOPs", format=".3g")
    implied: float = column("FLOP-implied", format=".3g")
    speed: ScorerSpeed | None
    insertion: float | None = column("insertion", format=".3g")
    deletion: float | None = column("deletion", format=".3g")


@dataclasses.dataclass(frozen=True)
class PublishedRow:
    """A row of PaPr's Tab. III: accuracy by keep rate, the areas under the curves of a scorer, and its speed-up."""

    scorer: str = column("scorer")
    dense: float = column("z=1", format=".3g")
    by_rate: Mapping[str, float] = column(format=".3g")
    insertion: float | None = column("insertion", format=".3g")
    deletion: float | None = column("deletion", format=".3g")
    speed_up: OverRounds | float | None = column("speed-up", format=".3g")


def by_scorer(
    rows: Table[PrunedRow], pruned: Pruned, speeds: Mapping[str, ScorerSpeed], model: Any, keep_rate: float
) -> Table[ScorerRow]:
    """Returns a row for the dense network and each scorer.

    Args:
      rows: what `pruning.accuracies` returned.
      pruned: what `pruning.measure` returned.
      speeds: what `bench.scorers.speeds` returned.
      model: the dense classifier.
      keep_rate: keep rate of the costs and speeds.
    """
    return Table(
        ScorerRow(
            scorer=row.scorer,
            gflops=row.gflops,
            implied=rows[0].gflops / row.gflops,
            speed=speeds.get(row.scorer),
            insertion=insertion,
            deletion=deletion,
        )
        for row in rows
        if row.scorer == DENSE or row.keep_rate == keep_rate
        for insertion, deletion in [_areas(pruned, row.scorer, num_scored(model))]
    )


def as_published(rows: Table[PrunedRow], summary: Table[ScorerRow]) -> Table[PublishedRow]:
    """Returns a row for each scorer."""
    dense, *reduced = rows
    by_rate: dict[str, dict[str, float]] = {}
    for row in reduced:
        by_rate.setdefault(row.scorer, {})[f"z={row.keep_rate:g}"] = row.accuracy.value
    of_scorer = {row.scorer: row for row in summary}
    published = []
    for name, accuracies in by_rate.items():
        row = of_scorer[name]
        faster = row.speed.speed_up if row.speed else None
        if faster is not None and math.isnan(faster.low):  # a single round has no range
            faster = faster.median
        published.append(PublishedRow(name, dense.accuracy.value, accuracies, row.insertion, row.deletion, faster))
    return Table(published)


def finding(rows: Table[PrunedRow], keep_rate: float) -> str:
    """Returns a sentence on the most accurate scorer at a keep rate, if one stands out, Random and the dense one."""
    dense, *reduced = rows
    at = {row.scorer: row.accuracy for row in reduced if row.keep_rate == keep_rate}
    names = short_names(at)
    named = {names[scorer]: accuracy for scorer, accuracy in at.items()}
    randoms = [f"{name} {named[name].value:.1%}" for name in named if name.partition(":")[0] == "random"]
    against = [*randoms[:1], f"the dense network {dense.accuracy.value:.1%}"]
    sentence = findings.finding(named, f"accuracy at keep rate {keep_rate:g}", of="scorers")
    return f"{sentence}; {', '.join(against)}."


def pictures(setting: Setting, pruned: Pruned) -> np.ndarray:
    """Draws images in rows: whole, then with kept patches, with the confidence in the true class (PaPr, Fig. 4).

    Clips are drawn as film strips, one below the other.
    """
    model, cells, count = setting.model, [], num_kept(setting.model, setting.keep_rate)
    names = short_names(setting.scorers)
    clips = len(model.grid) == 3
    for example in pruned.examples:
        image = film_strip(example.image, None, model.grid) if clips else upscale(example.image)
        name = setting.class_names[pruned.labels[example.place]]
        confidence = lambda scorer, patches, place=example.place: f"{pruned.confidences[scorer, patches][place]:.0%}"
        cells.append(label(image, f"{name}: {confidence(DENSE, num_scored(model))}"))
        for text, scorer in setting.scorers.items():
            ids = np.asarray(scorer.select(jnp.asarray(example.scores[text][None]), count))[0]
            assign = np.full(num_scored(model), -1)
            assign[ids] = ids
            caption = f"{names[text]}: {confidence(text, count)}"
            strip = lambda image=example.image, kept=assign >= 0: film_strip(image, kept, model.grid)
            cells.append(label(strip() if clips else token_groups(image, assign, model.entrance().grid), caption))
    return tile(cells, 1 if clips else 1 + len(setting.scorers), pad=6)


def describe(
    section: Section,
    setting: Setting,
    rows: Table[PrunedRow],
    summary: Table[ScorerRow],
    pruned: Pruned,
    *,
    timing: str = "",
) -> None:
    """Adds the results to a section of a report.

    Args:
      setting: what was pruned.
      rows: what `pruning.accuracies` returned.
      summary: what `by_scorer` returned.
      pruned: what `pruning.measure` returned.
      timing: how speeds were measured; empty if they were not.
    """
    for height, width in {scorer.size for scorer in setting.scorers.values() if isinstance(scorer, ResizedInputs)}:
        section.text(
            f"Scorers that read a ConvNet see the images resized from {setting.size[-2]} × {setting.size[-1]} to "
            f"{height} × {width} pixels; their cost is that of this size."
        )
    section.table(
        as_published(rows, summary),
        caption="Accuracy by keep rate (`z`). `insertion` and `deletion` are areas under the curves below."
        + (f" `speed-up` is that at keep rate {setting.keep_rate:g}, {timing}" if timing else ""),
    )
    _accuracy(section, setting, rows)
    _insertion_deletion(section, setting, pruned)
    if timing:
        _speed(section, summary, f"Cost and speed at keep rate {setting.keep_rate:g}, including the scorer's: {timing}")
    costs, accuracies = _lines(rows, lambda row: row.gflops), _lines(rows, lambda row: row.accuracy.value)
    points = {name: (cost, accuracies[name][1]) for name, (_, cost) in costs.items()}
    options = {"log_x": True, "reference": _chance(setting), "shares": True}
    plot = plots.scatter_plot(points, "GFLOPs", "accuracy", **options)
    names = short_names(setting.scorers)
    cheapest = min((row for row in summary if row.scorer in names), key=lambda row: row.gflops)
    section.figure(
        plot,
        f"At keep rate {setting.keep_rate:g}, including the scorer's cost, {names[cheapest.scorer]} is the "
        f"cheapest with {cheapest.gflops:.3g} GFLOPs; the dense network costs {rows[0].gflops:.3g}. Lines join the "
        f"keep rates of a scorer.{plots.cut_note(plot)}",
    )
    dropped = "tubes are dark" if len(setting.size) == 3 else "patches are grey with a cross"
    section.figure(
        pictures(setting, pruned),
        f"The patches that scorers keep at keep rate {setting.keep_rate:g}, and the resulting probability of the true "
        f"class; dropped {dropped}. {setting.networks} {about_images(setting.model.preprocessing)}".strip(),
    )
    slides = []
    for example in pruned.examples:
        image = upscale(example.image) if example.image.ndim == 3 else example.image
        slides.append(Scored(setting.class_names[int(pruned.labels[example.place])], image, example.scores))
    keep_slider(section, slides, setting.model.entrance().grid, keep_rate=setting.keep_rate)
    section.table(
        rows,
        caption=f"All keep rates. `accuracy`: {spread.BRACKETS} over {len(pruned.labels)} images. `agreement`: share "
        "of images for which the dense network predicts the same class; `confidence`: mean probability of the true "
        "class; `surer`: share of images for which it is higher than the dense network's.",
    )


def _chance(setting: Setting) -> dict[str, float]:
    return {"chance": 1 / len(setting.class_names)}


def _accuracy(section: Section, setting: Setting, rows: Table[PrunedRow]) -> None:
    low, high = _lines(rows, lambda row: row.accuracy.low), _lines(rows, lambda row: row.accuracy.high)
    bands: dict[str, tuple[list[float], list[float]]] = {name: (low[name][1], high[name][1]) for name in low}
    rates, (chance,) = sorted({row.keep_rate for row in rows}), _chance(setting).values()
    reference = {"chance": ([rates[0], rates[-1]], [chance, chance])}
    options = {"bands": bands, "reference": reference, "shares": True}
    plot = plots.line_plot(_lines(rows, lambda row: row.accuracy.value), "keep rate", "accuracy", **options)
    section.figure(
        plot, f"{finding(rows, setting.keep_rate)} Bands are 95 % intervals (Wilson) over images.{plots.cut_note(plot)}"
    )
    lines = _lines(rows, lambda row: row.confidence)
    plot = plots.line_plot(lines, "keep rate", _CONFIDENCE, reference=reference, shares=True)
    section.figure(
        plot,
        f"Mean probability of the true class: {rows[0].confidence:.1%} for the dense network, at keep rate 1."
        f"{plots.cut_note(plot)}",
    )


def _speed(section: Section, summary: Table[ScorerRow], caption: str) -> None:
    section.table(summary.only(*_COLUMNS), caption=caption)
    slower = [row.scorer for row in summary if row.speed and row.speed.speed_up.slower]
    if slower:
        section.note(f"Slower than the dense network on this machine: {', '.join(slower)}.", kind="warning")


def _insertion_deletion(section: Section, setting: Setting, pruned: Pruned) -> None:
    curves = {name: _curves(pruned, name, num_scored(setting.model)) for name in setting.scorers}
    chance, names = _chance(setting)["chance"], short_names(setting.scorers)
    for curve, xlabel, better in (
        ("insertion", "share of patches there", "max"),
        ("deletion", "share of patches removed", "min"),
    ):
        lines = {name: (pair[curve][0], pair[curve][1].mean(-1)) for name, pair in curves.items() if pair}
        if lines:
            areas = {names[name]: _area(pruned, name, num_scored(setting.model), curve) for name in lines}
            stands_out = findings.finding(areas, "area under the curve", of="scorers", better=better, spec=".2f")
            plot = plots.line_plot(
                {names[name]: line for name, line in lines.items()},
                xlabel,
                _CONFIDENCE,
                reference={"chance": ([0, 1], [chance, chance])},
                shares=True,
            )
            section.figure(
                plot,
                f"{curve.capitalize()}, best patches first. {stands_out} (95 % intervals over images); "
                f"{'high' if better == 'max' else 'low'} is good.{plots.cut_note(plot)}",
            )


def _curves(pruned: Pruned, scorer: str, num_patches: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Insertion and deletion curves of a scorer, of each image; {} if they were not measured."""
    if not any(name == scorer for name, _ in pruned.removed):
        return {}
    return curves(pruned.confidences, pruned.removed, pruned.confidences[DENSE, num_patches], scorer, num_patches)


def _area(pruned: Pruned, scorer: str, num_patches: int, curve: str) -> Interval:
    """The mean area under a curve of a scorer, with its interval over images."""
    areas = area(*_curves(pruned, scorer, num_patches)[curve])
    return Interval(float(areas.mean()), *normal_interval(areas))


def _areas(pruned: Pruned, scorer: str, num_patches: int) -> tuple[float | None, float | None]:
    """The areas under the insertion and the deletion curve of a scorer; None if they were not measured."""
    if not _curves(pruned, scorer, num_patches):
        return None, None
    insertion, deletion = (_area(pruned, scorer, num_patches, curve).value for curve in ("insertion", "deletion"))
    return insertion, deletion


def _lines(rows: Table[PrunedRow], value: Callable[[PrunedRow], float]) -> dict[str, tuple[list[float], list[float]]]:
    """A value against the keep rate, by scorer; all lines start at the dense network."""
    dense, *reduced = rows
    names = short_names(dict.fromkeys(row.scorer for row in reduced))
    lines = {name: ([1.0], [value(dense)]) for name in names.values()}
    for row in reduced:
        rates, values = lines[names[row.scorer]]
        rates.append(row.keep_rate)
        values.append(value(row))
    return lines
