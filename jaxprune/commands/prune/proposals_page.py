"""Tables and pictures of the agreement of proposals, and of images that they are unsure of."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxprune.commands.prune.page import Rows, Setting, pictures
from jaxprune.evaluate.collectors import proposals
from jaxprune.evaluate.collectors.pruning import Pruned, num_kept, num_scored
from jaxprune.reduction import DENSE
from jaxprune.report import Section
from jaxprune.report.scorer_names import short_names

SHOWN = 6  # images of each kind


def overlaps(setting: Setting, found: Pruned) -> list[dict[str, Any]]:
    """Returns the rows of `proposals.overlap_rows` at the published keep rates."""
    counts = {rate: num_kept(setting.model, rate) for rate in proposals.OVERLAP_RATES}
    return proposals.overlap_rows(found.scores, setting.scorers, counts)


def describe(
    section: Section,
    setting: Setting,
    found: Pruned,
    overlap: Rows,
    keep_rates: Sequence[float],
    image_of: Callable[[int], np.ndarray],
) -> list[dict[str, Any]]:
    """Adds both studies to a section of a report; returns the rows of the second.

    Args:
      section: the section.
      setting: what was pruned, and how.
      found: what `pruning.measure` returned.
      overlap: what `overlaps` returned.
      keep_rates: the measured keep rates.
      image_of: returns the image of an index.
    """
    if overlap:
        names = short_names(setting.scorers)
        best = max(overlap, key=lambda row: row["IoU"] - row["IoU chance"])
        section.table(
            [_cells(row, names) for row in overlap],
            caption=f"IoU of the patches that two scorers keep (PaPr, appendix A): {names[best['scorer']]} and "
            f"{names[best['other scorer']]} agree most. ± is the standard deviation between images (population), "
            f"n = {best['images']}; `by chance`: of patches drawn at random.",
            formats=".2f",
        )
    if found.proposal is None:
        section.text(
            "No scorer reads a ConvNet with the classes of the data, so there is no confidence of a proposal "
            "to compare."
        )
        return []
    rate = min(keep_rates, key=lambda each: abs(each - proposals.CONTRAST_RATE))
    count, whole = num_kept(setting.model, rate), num_scored(setting.model)
    confidences = {DENSE: found.confidences[DENSE, whole]}
    confidences |= {name: found.confidences[name, count] for name in setting.scorers}
    groups = proposals.contrasts(found.proposal, confidences[DENSE])
    rows = proposals.contrast_rows(groups, found.proposal, confidences)
    if rows:
        section.table(
            [_spread(row) for row in rows],
            caption=f"Probability of the true class at keep rate {rate:g}, for images that one network is unsure of "
            "(below 30 %) and the other sure (above 70 %) (PaPr, appendix B). ± is the standard deviation between "
            "images (population); `change` from the dense network; `surer`: share of images with a higher probability.",
            formats=dict.fromkeys(("change", "surer"), ".3f"),
        )
    for kind, places in groups.items():
        if not len(places):
            section.text(f"No image: {kind}.")
            continue
        some = [found.example(place, image_of(int(found.index[place]))) for place in map(int, places[:SHOWN])]
        section.figure(
            pictures(setting._replace(keep_rate=rate), found._replace(shown=some)),
            f"{kind.capitalize()}: {len(places)} of {len(found.labels)} images, largest differences first. The "
            f"probability of the true class: by the dense network, then with the patches that each scorer "
            f"keeps at keep rate "
            f"{rate:g}. The proposal's is {', '.join(f'{found.proposal[each.place]:.0%}' for each in some)}.",
        )
    return rows


def _cells(row: Any, names: Any) -> dict[str, Any]:
    shown = {"keep rate": row["keep rate"], "scorer": names[row["scorer"]], "other scorer": names[row["other scorer"]]}
    return {**shown, "IoU": (row["IoU"], row["IoU std"]), "by chance": row["IoU chance"]}


def _spread(row: Any) -> dict[str, Any]:
    found = {name: value for name, value in row.items() if name != "confidence std"}
    return {**found, "confidence": (row["confidence"], row["confidence std"])}
