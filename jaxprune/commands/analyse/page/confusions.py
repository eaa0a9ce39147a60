"""The confusions of classes that a plan makes more or less often than the dense network."""

from collections.abc import Sequence

from jaxprune.commands.analyse.page.parts import SHOWN_ROWS, Rows, add_table, at_one_rate, grouped
from jaxprune.commands.analyse.tables.outcomes import name_of
from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.report import Section

_MOST = 5  # of a plan, in each direction


def describe(section: Section, rows: Rows, found: Sequence[Observed]) -> None:
    """Adds the pairs of classes whose confusion grew and shrank most under each plan.

    Args:
      section: the section.
      rows: what `outcomes.confusions` returned.
      found: all members.
    """
    plans = grouped(rows, ("network", "plan"))
    chosen = [name_of(each) for each in at_one_rate([each for each in found if name_of(each) in plans])]
    most = max(1, min(_MOST, SHOWN_ROWS // (2 * len(chosen))))
    shown = []
    for name in chosen:
        for sign in (1, -1):
            shown += [row for row in plans[name] if row["change"] * sign > 0][:most]
    top = max(shown, key=lambda row: abs(row["change"]))
    finding = (
        f"{top['plan']} changes one confusion most: {top['class']} is predicted as {top['predicted']} "
        f"{top['with plan']} instead of {top['dense']} times, of {top['images']} images. "
    )
    some = "" if len(chosen) == len(plans) else "Plans of one keep rate are shown. "
    add_table(
        section,
        shown,
        f"Up to {most} confusions of each plan that grew most and that shrank most: images of `class` for which "
        f"`predicted` is the prediction. {finding}{some}More of each plan are in `confusions.csv`.",
    )
