"""The verdicts on the paper's claims."""

from jaxprune.commands.analyse.page.parts import Rows
from jaxprune.commands.analyse.tables.claims import FAILS, HOLDS
from jaxprune.report import Section, spread

# The verdict comes first: the last columns of a wide table are not visible.
COLUMNS = ("section", "verdict", "claim", "here", "holds if", "figure")


def describe(section: Section, rows: Rows) -> None:
    """Adds what `claims.judge` returned."""
    number = lambda word: sum(row["verdict"] == word for row in rows)
    holds, fails = number(HOLDS), number(FAILS)
    measured = [row for row in rows if row["here"] == row["here"]]
    section.text(
        f'{holds} of the {len(rows)} findings of "Which Tokens to Use?" (supplement D to M) hold here, {fails} do not, '
        f"{len(rows) - holds - fails} are not decidable: their interval contains the bound, or data are missing."
    )
    section.table(
        [{name: row[name] for name in COLUMNS} for row in spread.as_ranges(measured)],
        caption="`here`: the measured value, in brackets its 95 % interval: over images unless noted otherwise, as if "
        "all rows of a mean were fully correlated, hence conservative. IoA, IoU and coherence are relative to chance.",
        formats={"here": ".2f"},
    )
    if absent := [row for row in rows if row["here"] != row["here"]]:
        section.table(
            [{name: row[name] for name in ("section", "claim", "verdict")} for row in absent],
            caption="Not measured.",
        )
