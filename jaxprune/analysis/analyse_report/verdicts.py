"""The paper's claims, and whether they hold here."""

from jaxprune.analysis.analyse_report.parts import Rows
from jaxprune.analysis.claims import FAILS, HOLDS
from jaxprune.viz import spread
from jaxprune.viz.report import Section

# What decides comes first: the last columns of a wide table are out of sight.
COLUMNS = ("section", "verdict", "claim", "here", "holds if", "figure")


def describe(section: Section, rows: Rows) -> None:
    """Adds what `claims.judge` returned."""
    number = lambda word: sum(row["verdict"] == word for row in rows)
    holds, fails = number(HOLDS), number(FAILS)
    measured = [row for row in rows if row["here"] == row["here"]]
    section.text(
        f'{holds} of the {len(rows)} findings of "Which Tokens to Use?" (supplement D to M) hold here, {fails} do not, '
        f"{len(rows) - holds - fails} are not decidable: their interval has the bound inside, or something is missing."
    )
    section.table(
        [{name: row[name] for name in COLUMNS} for row in spread.as_ranges(measured)],
        caption="`here`: what was measured, in brackets the 95 % interval: over images unless said otherwise, as if "
        "all rows of a mean moved together, which is rather too wide. IoA, IoU and coherence are counted from chance.",
        formats={"here": ".2f"},
    )
    if absent := [row for row in rows if row["here"] != row["here"]]:
        section.table(
            [{name: row[name] for name in ("section", "claim", "verdict")} for row in absent],
            caption="Not measured.",
        )
