"""Retrieval on the page: how often a cheaper network finds what the full one finds, at what cost."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxprune.commands.shared.framed_picture import framed_picture
from jaxprune.data.source import Source
from jaxprune.evaluate.feature_probe import Labelled
from jaxprune.measures.intervals import Interval
from jaxprune.measures.retrieval import Retrieved
from jaxprune.preprocessing import Preprocessing
from jaxprune.reduction import DENSE
from jaxprune.report import Section, plots, spread
from jaxprune.report.pictures.base import WHITE
from jaxprune.report.pictures.layout import tile
from jaxprune.report.pictures.text import label
from jaxprune.report.table import Table, column

DRAWN = 4  # queries in the picture
_GAP = 8  # pixels


@dataclasses.dataclass(frozen=True)
class RetrievalRow:
    """What a network retrieves from a gallery of the full network's features."""

    plan: str = column("plan")
    neighbour_share: Interval = column("one of the nearest", format=".1%", ends=("low", "high"))
    same: Interval = column("the nearest", format=".1%")
    cosine: float = column("cosine", format=".3f")
    accuracy: Interval | None = column("class of the nearest", format=".1%")
    difference: Interval | tuple[None, None, None] | None = column("class − dense", format="+.1%")
    gflops: float = column("GFLOPs", format=".3g")


def describe(section: Section, rows: Table[RetrievalRow], gallery: int, queries: int, neighbours: int) -> None:
    """Adds the table, and a plot against cost, to a section of a report.

    Args:
      gallery, queries: numbers of images.
      neighbours: number of the full network's nearest images.
    """
    section.text(
        f"The features of {queries} images by each network are queries in a gallery: the features of {gallery} other "
        "images by the full network, as an index that was built before. So a row says whether queries may be computed "
        "by a cheaper network than the index."
    )
    classes = ""
    if any(row.accuracy for row in rows):
        classes = (
            " *Class of the nearest*: whether the nearest image has the class of the query; the difference from dense "
            "is paired by image (95 %, Agresti and Min). A network can find other images of the same class as well."
        )
    section.table(
        rows,
        caption=f"*One of the nearest*: the nearest image is one of the full network's {neighbours} nearest; *the "
        f"nearest*: it is the full network's nearest, too; {spread.BRACKETS}. *Cosine*: between the features of both "
        f"networks, mean.{classes}",
    )
    reduced = [row for row in rows if row.plan != DENSE]
    plot = plots.scatter_plot(
        {row.plan: ([row.gflops], [row.neighbour_share.value]) for row in reduced},
        "GFLOPs",
        "one of the nearest",
        pareto=("min", "max"),
        intervals={row.plan: [(row.neighbour_share.low, row.neighbour_share.high)] for row in reduced},
        shares=True,
    )
    section.figure(
        plot,
        f"How often the nearest image is one of the full network's {neighbours} nearest, against cost; lines are 95 % "
        f"intervals (Wilson).{plots.front_note(plot)}{plots.cut_note(plot)}",
    )


def pictures(
    section: Section,
    results: Mapping[str, Retrieved],
    images: tuple[Labelled, Labelled],
    sources: Mapping[str, Source],
    preprocessing: Preprocessing,
) -> None:
    """Adds queries for which networks disagree, with what each retrieves, to a section of a report.

    Args:
      results: by network, the dense one among them.
      images: the gallery, and the queries.
      sources: of both, as "train" and "eval".
      preprocessing: of the images.
    """
    gallery, queries = images
    missed = np.stack([~result.is_neighbour for result in results.values()])
    differing = np.flatnonzero(missed.any(0))
    if not len(differing):
        return
    count, cells = min(DRAWN, len(differing)), []
    # Spread, since the images of a folder are in the order of their classes.
    for query in differing[np.arange(count) * len(differing) // count]:
        cells.append(label(framed_picture(sources["eval"], queries.index[query], preprocessing, None), "query"))
        for name, result in results.items():
            row = result.nearest[query]
            right = None if name == DENSE else result.is_neighbour[query]
            cells.append(label(framed_picture(sources["train"], gallery.index[row], preprocessing, right), name))
    section.figure(
        tile(cells, 1 + len(results), _GAP, WHITE),
        "Some queries for which a network retrieves none of the full network's nearest images, and what each "
        "retrieves; green: one of the full network's nearest, orange: none of them.",
    )
