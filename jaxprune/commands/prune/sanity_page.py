"""Tables and a plot of the sanity checks of scorers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from jaxprune.evaluate import sanity
from jaxprune.report import Section, plots
from jaxprune.report.scorer_names import short_names
from jaxprune.scoring import Scorer

_ALIKE = 0.99  # mean correlation between images from which a scorer is reported to ignore them

Row = dict[str, Any]


def cascade_rows(scorers: Mapping[str, Scorer], images: Float[Array, "b *sides c"], *, seed: int = 0) -> list[Row]:
    """Returns a row for each scorer that reads a network, and each part of it: the scores once it is random too.

    "Spearman" is the mean rank correlation with the original scores over the images, "std" that between images, and
    "parts" the number of randomised parts, from the top.

    Args:
      scorers: by name.
      images: normalised as for the scorers.
      seed: seed of the random weights.
    """
    rows = []
    for name, scorer in scorers.items():
        if sanity.network_of(scorer)[1] is None:
            continue
        steps = sanity.cascade(scorer, images, seed=seed)
        for count, (part, values) in enumerate(steps):
            known = values[np.isfinite(values)]
            mean, std = (float(known.mean()), float(known.std())) if len(known) else (np.nan, np.nan)
            start = {"scorer": name, "parts": count, "of": len(steps) - 1, "part": part}
            rows.append({**start, "Spearman": mean, "std": std, "images": len(known)})
    return rows


def summary(
    scorers: Mapping[str, Scorer], scores: Mapping[str, Float[np.ndarray, "n p"]], cascades: Sequence[Row]
) -> list[Row]:
    """Returns a row for each scorer: whether its scores depend on the image, and on the weights of its network.

    Args:
      scorers: by name.
      scores: of several images, by scorer.
      cascades: what `cascade_rows` returned.
    """
    rows = []
    for name in scorers:
        own = [row for row in cascades if row["scorer"] == name]
        row: Row = {"scorer": name, "between images": sanity.across_images(scores[name])}
        for column, place in (("top part random", 1), ("half random", len(own) // 2), ("all random", -1)):
            row[column] = (own[place]["Spearman"], own[place]["std"]) if own else None
        rows.append(row)
    return rows


def describe(section: Section, rows: Sequence[Row], cascades: Sequence[Row]) -> None:
    """Adds the checks to a section of a report.

    Args:
      section: the section.
      rows: what `summary` returned.
      cascades: what `cascade_rows` returned.
    """
    names: dict[str, str] = short_names([row["scorer"] for row in rows])
    blind = [names[row["scorer"]] for row in rows if row["between images"] > _ALIKE]
    found = f"{', '.join(blind)} score{'s' * (len(blind) == 1)} all images alike" if blind else "No scorer does"
    images = max((row["images"] for row in cascades), default=0)
    section.table(
        [{**row, "scorer": names[row["scorer"]]} for row in rows],
        caption="`between images`: mean rank correlation between the scores of different images; 1 = the scorer "
        f"ignores the image. {found}. The other columns: rank correlation with the original scores when the weights of "
        f"the scorer's network are random, from the top down (Adebayo et al., 2018); ± is the standard deviation "
        f"between {images} images (population). Scores that stay the same do not depend on what the network has "
        "learned.",
        formats=".2f",
    )
    if not cascades:
        return
    lines = {}
    for name in dict.fromkeys(row["scorer"] for row in cascades):
        own = [row for row in cascades if row["scorer"] == name]
        lines[names[name]] = ([row["parts"] / row["of"] for row in own], [row["Spearman"] for row in own])
    last = {name: values[-1] for name, (_, values) in lines.items()}
    least = min(last, key=lambda name: abs(last[name]))
    section.figure(
        plots.line_plot(
            lines, "share of the network's parts that are random", "rank correlation with the scores before"
        ),
        f"The network is randomised from the classifier down. With all weights random, {least} is the least correlated "
        f"with its own scores before ({last[least]:.2f}).",
    )
