"""PaPr's two studies on the page: whether proposals agree, and images that one network is unsure of."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxprune.commands.prune.page import Setting, pictures
from jaxprune.evaluate.collectors import proposals
from jaxprune.evaluate.collectors.proposals import ContrastRow, OverlapRow
from jaxprune.evaluate.collectors.pruning import Pruned, num_kept, num_scored
from jaxprune.measures.intervals import mean_interval
from jaxprune.reduction import DENSE
from jaxprune.report import Section, findings
from jaxprune.report.scorer_names import short_names
from jaxprune.report.table import Table

DRAWN = 6  # images of each kind


def overlaps(setting: Setting, pruned: Pruned) -> Table[OverlapRow]:
    """Returns the rows of `proposals.overlap_rows` at the published keep rates."""
    counts = {rate: num_kept(setting.model, rate) for rate in proposals.OVERLAP_RATES}
    return proposals.overlap_rows(pruned.scores, setting.scorers, counts)


def describe(
    section: Section,
    setting: Setting,
    pruned: Pruned,
    overlap: Table[OverlapRow],
    keep_rates: Sequence[float],
    image_of: Callable[[int], np.ndarray],
) -> Table[ContrastRow]:
    """Adds both studies to a section of a report; returns the rows of the second.

    Args:
      setting: what was pruned, and how.
      pruned: what `pruning.measure` returned.
      overlap: what `overlaps` returned.
      keep_rates: the measured keep rates.
      image_of: returns the image of an index.
    """
    if overlap:
        _overlap(section, overlap, short_names(setting.scorers))
    if pruned.proposal is None:
        section.text(
            "No scorer reads a ConvNet with the classes of the data, so there is no confidence of a proposal "
            "to compare."
        )
        return Table()
    rate = min(keep_rates, key=lambda rate: abs(rate - proposals.CONTRAST_RATE))
    count, patches = num_kept(setting.model, rate), num_scored(setting.model)
    confidences = {DENSE: pruned.confidences[DENSE, patches]}
    confidences |= {name: pruned.confidences[name, count] for name in setting.scorers}
    groups = proposals.contrasts(pruned.proposal, confidences[DENSE])
    rows = proposals.contrast_rows(groups, pruned.proposal, confidences)
    if rows:
        section.table(
            rows,
            caption=f"Probability of the true class at keep rate {rate:g}, for images that one network is unsure of "
            "(below 30 %) and the other sure (above 70 %) (PaPr, appendix B). ± is the standard deviation between "
            "images (population); `change` from the dense network; `surer`: share of images with a higher probability.",
        )
    for kind, places in groups.items():
        if not len(places):
            section.text(f"No image: {kind}.")
            continue
        examples = [pruned.example(place, image_of(int(pruned.index[place]))) for place in map(int, places[:DRAWN])]
        by_proposal = ", ".join(f"{pruned.proposal[example.place]:.0%}" for example in examples)
        section.figure(
            pictures(setting._replace(keep_rate=rate), pruned._replace(examples=examples)),
            f"{kind.capitalize()}: {len(places)} of {len(pruned.labels)} images, largest differences first. The "
            f"probability of the true class: by the dense network, then with the patches that each scorer "
            f"keeps at keep rate {rate:g}. The proposal's is {by_proposal}.",
        )
    return rows


def _overlap(section: Section, rows: Table[OverlapRow], names: Mapping[str, str]) -> None:
    above = {
        f"{names[row.scorer]} and {names[row.other_scorer]} at {row.keep_rate:g}": mean_interval(
            row.iou.mean - row.chance, row.iou.std, row.images
        )
        for row in rows
    }
    short = [dataclasses.replace(row, scorer=names[row.scorer], other_scorer=names[row.other_scorer]) for row in rows]
    section.table(
        Table(short).without("images"),
        caption="IoU of the patches that two scorers keep (PaPr, appendix A). "
        f"{findings.finding(above, 'IoU above chance', of='pairs', spec='.2f')}. ± is the standard deviation between "
        f"images (population), n = {rows[0].images}; `by chance`: of patches drawn at random.",
    )
