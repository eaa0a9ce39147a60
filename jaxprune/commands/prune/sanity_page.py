"""The sanity checks of scorers on the page."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Array, Float

from jaxprune.evaluate import sanity
from jaxprune.measures.intervals import Spread
from jaxprune.report import Section, plots
from jaxprune.report.scorer_names import short_names
from jaxprune.report.table import Table, column
from jaxprune.scoring import Scorer

_ALIKE = 0.99  # mean correlation between images from which a scorer is reported to ignore them


@dataclasses.dataclass(frozen=True)
class CascadeRow:
    """The scores of a scorer when some parts of its network are random.

    Attributes:
      scorer: its name.
      parts: number of random parts, from the top.
      num_parts: number of parts of the network.
      part: the last of the random parts.
      spearman: rank correlation with the original scores over the images.
      images: number of images whose patches differ in their scores.
    """

    scorer: str = column("scorer")
    parts: int = column("parts")
    num_parts: int = column("of")
    part: str = column("part")
    spearman: Spread = column("Spearman", ends=("std",))
    images: int = column("images")


@dataclasses.dataclass(frozen=True)
class SanityRow:
    """Whether the scores of a scorer depend on the image, and on the weights of its network; NaN if it has none."""

    scorer: str = column("scorer")
    between_images: float = column("between images", format=".2f")
    top_random: Spread | float = column("top part random", format=".2f", default=math.nan)
    half_random: Spread | float = column("half random", format=".2f", default=math.nan)
    all_random: Spread | float = column("all random", format=".2f", default=math.nan)


def cascade_rows(
    scorers: Mapping[str, Scorer], images: Float[Array, "b *sides c"], *, seed: int = 0
) -> Table[CascadeRow]:
    """Returns a row for each scorer that reads a network, and each part of it: the scores once it is random too.

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
        for count, (part, correlations) in enumerate(steps):
            finite = correlations[np.isfinite(correlations)]
            spread = Spread.of(finite) if len(finite) else Spread(math.nan, math.nan)
            rows.append(CascadeRow(name, count, len(steps) - 1, part, spread, len(finite)))
    return Table(rows)


def summary(
    scorers: Mapping[str, Scorer], scores: Mapping[str, Float[np.ndarray, "n p"]], cascades: Table[CascadeRow]
) -> Table[SanityRow]:
    """Returns a row for each scorer.

    Args:
      scorers: by name.
      scores: of several images, by scorer.
      cascades: what `cascade_rows` returned.
    """
    rows = []
    for name in scorers:
        steps = [row.spearman for row in cascades if row.scorer == name]
        randomised = (steps[1], steps[len(steps) // 2], steps[-1]) if steps else ()
        rows.append(SanityRow(name, sanity.across_images(scores[name]), *randomised))
    return Table(rows)


def describe(section: Section, rows: Table[SanityRow], cascades: Table[CascadeRow]) -> None:
    """Adds the checks to a section of a report.

    Args:
      rows: what `summary` returned.
      cascades: what `cascade_rows` returned.
    """
    names: dict[str, str] = short_names([row.scorer for row in rows])
    blind = [names[row.scorer] for row in rows if row.between_images > _ALIKE]
    ignored = f"{', '.join(blind)} score{'s' * (len(blind) == 1)} all images alike" if blind else "No scorer does"
    images = max((row.images for row in cascades), default=0)
    section.table(
        rows.of(dataclasses.replace(row, scorer=names[row.scorer]) for row in rows),
        caption="`between images`: mean rank correlation between the scores of different images; 1 = the scorer "
        f"ignores the image. {ignored}. The other columns: rank correlation with the original scores when the weights "
        f"of the scorer's network are random, from the top down (Adebayo et al., 2018); ± is the standard deviation "
        f"between {images} images (population). Scores that stay the same do not depend on what the network has "
        "learned.",
    )
    if not cascades:
        return
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for row in cascades:
        shares, correlations = lines.setdefault(names[row.scorer], ([], []))
        shares.append(row.parts / row.num_parts)
        correlations.append(row.spearman.mean)
    last = {name: correlations[-1] for name, (_, correlations) in lines.items()}
    section.figure(
        plots.line_plot(
            lines, "share of the network's parts that are random", "rank correlation with the scores before"
        ),
        "The network is randomised from the classifier down. With all weights random, the correlation with the scores "
        f"before is {', '.join(f'{value:.2f} for {name}' for name, value in last.items())}.",
    )
