"""Judges the findings of "Which Tokens to Use?" by the tables that `analyse` wrote into a run directory.

python scripts/studies/which_tokens/claims.py RUN

Haurum et al., 2023, supplement D to M: one row per claim, with the figure measured here, its 95 % interval, and the
bound that it is compared with. The bounds are ours: the paper states findings, not bounds. Prints the verdicts, writes
RUN/claims.csv, and adds a section to RUN/report.html.
"""

import argparse
import csv
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxprune.errors import UserError, command
from jaxprune.measures.overlap import RESCALED
from jaxprune.reduction import DENSE
from jaxprune.report import Report, Section, spread
from jaxprune.report.table import as_text, write_csv

sys.path.append(str(Path(__file__).parent.parent))
from which_tokens import figures
from which_tokens.figures import Figure, Row, Tables

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decidable"
TABLES = ("rates", "methods", "radial", "networks", "data_sets", "anchors", "spatial", "depths")
_TEXTS = {"network", "plan", "method", "data", "anchor"}  # last words of the columns that hold names


class Claim(NamedTuple):
    """One finding of the paper.

    Attributes:
      section: section of the supplement.
      text: the finding.
      figure: the measured quantity.
      measure: tables -> the figure; None if its inputs are missing.
      bound: the bound that the figure is compared with.
      above: whether the claim is that the figure is above the bound.
      needs: what the analysis must contain.
    """

    section: str
    text: str
    figure: str
    measure: Callable[[Tables], Figure | None]
    bound: float
    above: bool
    needs: str


def read_tables(run: Path) -> dict[str, list[Row]]:
    """Reads the tables of an analysis, {name: rows}; a table that was not written is empty.

    Raises:
      UserError: the directory has none of them.
    """
    tables: dict[str, list[Row]] = {name: [] for name in TABLES}
    for name in TABLES:
        if (path := run / f"{name}.csv").exists():
            with path.open(newline="") as file:
                tables[name] = [_row(cells) for cells in csv.DictReader(file)]
    if not any(tables.values()):
        raise UserError(f"{run} has no tables of an analysis: give the run directory of `configs/analyse.py`.")
    return tables


def _row(cells: dict[str, str]) -> Row:
    return {name: _value(name, text) for name, text in cells.items() if text}


def _value(name: str, text: str) -> str | float:
    if name.split()[-1] in _TEXTS:
        return text
    try:
        return float(text)
    except ValueError:
        return text


def judge(tables: Tables) -> list[dict[str, Any]]:
    """Returns one row per claim: its figure with an interval, the bound, and the verdict.

    A claim holds if the whole interval is on its side of the bound, and fails if the whole interval is on the other.

    Args:
      tables: rows by name, for each of `TABLES`.
    """
    rows = []
    for claim in CLAIMS:
        figure = claim.measure(tables)
        # A network that drops nothing, or constant maps, give no figure.
        if figure is None or not math.isfinite(figure.value):
            figure, verdict = Figure(math.nan, math.nan, math.nan), f"{OPEN}: needs {claim.needs}"
        else:
            verdict = verdict_of(figure, claim.bound, above=claim.above)
        rows.append(
            {
                "section": claim.section,
                "claim": claim.text,
                "figure": claim.figure,
                "here": figure.value,
                "here low": figure.low,
                "here high": figure.high,
                "holds if": f"{'above' if claim.above else 'below'} {claim.bound:g}",
                "verdict": verdict,
            }
        )
    return rows


def verdict_of(figure: Figure, bound: float, *, above: bool) -> str:
    """Returns whether an interval is above or below a bound.

    >>> verdict_of(Figure(0.4, 0.3, 0.5), 0, above=True), verdict_of(Figure(0.1, -0.1, 0.3), 0, above=True)
    ('holds', 'not decidable')
    """
    if math.isnan(figure.low) or math.isnan(figure.high) or figure.low <= bound <= figure.high:
        return OPEN
    return HOLDS if (figure.low > bound) == above else FAILS


def describe(section: Section, rows: list[dict[str, Any]]) -> None:
    """Adds what `judge` returned to a section of a report."""
    section.text(_summary(rows))
    # The verdict comes first: the last columns of a wide table are not visible.
    columns = ("section", "verdict", "claim", "here", "holds if", "figure")
    section.table(
        spread.as_ranges([row for row in rows if not math.isnan(row["here"])]),
        columns,
        caption="`here`: the measured value, in brackets its 95 % interval: over images unless noted otherwise, as if "
        "all rows of a mean were fully correlated, hence conservative. IoA, IoU and coherence are relative to chance.",
        formats={"here": ".2f"},
    )
    if absent := [row for row in rows if math.isnan(row["here"])]:
        section.table(absent, ("section", "claim", "verdict"), caption="Not measured.")


def _summary(rows: list[dict[str, Any]]) -> str:
    holds, fails = (sum(row["verdict"] == word for row in rows) for word in (HOLDS, FAILS))
    return (
        f'{holds} of the {len(rows)} findings of "Which Tokens to Use?" (supplement D to M) hold here, {fails} do not, '
        f"{len(rows) - holds - fails} are not decidable: their interval contains the bound, or data are missing."
    )


def judge_run(run: Path) -> list[dict[str, Any]]:
    """Judges the tables in a run directory, prints the verdicts, and writes them beside the tables."""
    rows = judge(read_tables(run))
    write_csv(run / "claims.csv", rows)
    document = Report("jaxprune", str(run))
    section = document.section("The paper's claims, and whether they hold here", slug="claims")
    describe(section, rows)
    section.command(shlex.join(["python", *sys.argv]))
    document.add_to(run / "report.html")
    print(as_text([{name: row[name] for name in ("section", "here", "verdict", "claim")} for row in rows]))
    print(f"{_summary(rows)}\nwritten to {run / 'claims.csv'} and {run / 'report.html'}")
    return rows


_TOPK_EVIT = {"topk", "evit"}

CLAIMS = (
    Claim(
        "D",
        "At high keep rates ATS uses far fewer rows in the last step than its budget.",
        "rows in use after the last step, of those allowed, keep rates above .6",
        figures.ats_in_use,
        0.75,
        False,
        "ats at a keep rate above .6",
    ),
    Claim(
        "G",
        "What a pruning method keeps is consistent across keep rates.",
        f"IoA of topk, evit and dynamicvit ({RESCALED})",
        figures.across_rates(figures.PRUNING, "IoA"),
        0.5,
        True,
        "topk, evit or dynamicvit at two keep rates",
    ),
    Claim(
        "G",
        "ATS and the centres of K-Medoids and DPC-KNN are less consistent than that.",
        "IoA of the former minus that of the latter",
        figures.between(
            figures.across_rates(figures.PRUNING, "IoA"), figures.across_rates(("ats", *figures.CENTRES), "IoA")
        ),
        0,
        True,
        "a pruning method, and ats, kmedoids or dpc_knn, at two keep rates",
    ),
    Claim(
        "G",
        "Clusters of hard merging are consistent across keep rates, more than those of soft merging.",
        "homogeneity of tome, kmedoids and dpc_knn minus that of sit, patch_merger and sinkhorn",
        figures.between(
            figures.across_rates(figures.HARD, "homogeneity"), figures.across_rates(figures.SOFT, "homogeneity")
        ),
        0,
        True,
        "hard and soft merging at two keep rates",
    ),
    Claim(
        "G",
        "Clusters of SiT and PatchMerger are consistent in the first step, and no longer in the last.",
        "homogeneity of the first step minus that of the last",
        figures.between(
            figures.across_rates(("sit", "patch_merger"), "homogeneity", figures.first_steps),
            figures.across_rates(("sit", "patch_merger"), "homogeneity", figures.last_steps),
        ),
        0,
        True,
        "sit or patch_merger at two keep rates",
    ),
    Claim(
        "G",
        "What pruning keeps is not consistent across backbones.",
        f"IoU of topk, evit, dynamicvit and ats in two networks ({RESCALED})",
        figures.across_networks((*figures.PRUNING, "ats"), "IoU"),
        0.5,
        False,
        "two networks of one grid",
    ),
    Claim(
        "G",
        "Clusters of hard merging are consistent across backbones at keep rates above .25.",
        "NMI of tome, kmedoids and dpc_knn in two networks",
        figures.across_networks(figures.HARD, "NMI", figures.by_rate(True)),
        0.5,
        True,
        "two networks of one grid under hard merging",
    ),
    Claim(
        "G",
        "At .25 they are much less so.",
        "NMI above .25 minus that at .25",
        figures.between(
            figures.across_networks(figures.HARD, "NMI", figures.by_rate(True)),
            figures.across_networks(figures.HARD, "NMI", figures.by_rate(False)),
        ),
        0,
        True,
        "two networks of one grid, and a keep rate up to .3",
    ),
    Claim(
        "G",
        "Clusters of SiT and Sinkhorn are not consistent across backbones.",
        "NMI of hard merging minus that of sit and sinkhorn",
        figures.between(
            figures.across_networks(figures.HARD, "NMI"), figures.across_networks(("sit", "sinkhorn"), "NMI")
        ),
        0,
        True,
        "two networks of one grid under hard and soft merging",
    ),
    Claim(
        "H",
        "Maps of the mean depth of patches are much alike on different data.",
        "Spearman of the maps of a method on two data sets; interval over plans",
        figures.same_maps,
        0.5,
        True,
        "two data sets (config.more_data)",
    ),
    Claim(
        "H",
        "The earth mover's distance says what the other measures of maps do.",
        "Spearman of EMD and JSD over pairs of maps",
        figures.emd_as_others,
        0.5,
        True,
        "five pairs of maps on two data sets",
    ),
    Claim(
        "I",
        "Learned patterns have little in common with fixed radial ones.",
        f"IoU with the l1, l2 and linf patterns ({RESCALED})",
        figures.radial,
        0.5,
        False,
        "a method that keeps patches",
    ),
    Claim(
        "J",
        "CKA is as good a proxy of accuracy as Procrustes.",
        "their rank correlations with the difference in accuracy: CKA minus Procrustes",
        figures.as_good("CKA"),
        -0.1,
        True,
        "ten plans beside the dense network, and classes",
    ),
    Claim(
        "J",
        "PWCCA is as good a proxy of accuracy as Procrustes.",
        "PWCCA minus Procrustes, likewise",
        figures.as_good("PWCCA"),
        -0.1,
        True,
        "ten plans beside the dense network, classes, and more images than features",
    ),
    Claim(
        "K",
        "The Procrustes distance of features is a moderate to strong proxy of accuracy.",
        "rank correlation with the difference from the dense network; interval over plans",
        figures.proxy(DENSE, "Procrustes"),
        0.4,
        True,
        "five plans beside the dense network, and classes",
    ),
    Claim(
        "K",
        "IoU with Top-K is also a proxy.",
        "rank correlation of 1 - IoU with the difference from topk",
        figures.proxy("topk", "IoU", -1),
        0.4,
        True,
        "five plans beside topk, and classes",
    ),
    Claim(
        "K",
        "NMI with K-Medoids is also a proxy.",
        "rank correlation of 1 - NMI with the difference from kmedoids",
        figures.proxy("kmedoids", "NMI", -1),
        0.4,
        True,
        "five plans beside kmedoids, and classes",
    ),
    Claim(
        "L",
        "Top-K and EViT keep much the same patches.",
        "their IoU minus that of either with ats and dynamicvit",
        figures.between(
            lambda tables: figures.pairs_of(tables, lambda pair: pair == _TOPK_EVIT),
            lambda tables: figures.pairs_of(
                tables, lambda pair: bool(pair & _TOPK_EVIT) and bool(pair & {"ats", "dynamicvit"})
            ),
        ),
        0,
        True,
        "topk, evit, and ats or dynamicvit at one keep rate",
    ),
    Claim(
        "L",
        "DynamicViT keeps patches nearer to the centre than Top-K and EViT do.",
        "distance from the centre, in the mean of all patches: theirs minus its",
        figures.groups_apart("spatial", ("topk", "evit"), ("dynamicvit",), figures.spatial("centre distance")),
        0,
        True,
        "dynamicvit, and topk or evit",
    ),
    Claim(
        "L",
        "Patches pass fewer blocks under ATS than under Top-K and EViT.",
        "mean depth in blocks: theirs minus its",
        figures.groups_apart("depths", ("topk", "evit"), ("ats",), lambda rows: figures.mean_of(rows, "depth")),
        0,
        True,
        "ats, and topk or evit",
    ),
    Claim(
        "L",
        "The depth of K-Medoids' and DPC-KNN's centres is more even over the image than that of pruning.",
        "standard deviation of the mean depth over places, in blocks: of pruning minus theirs",
        figures.groups_apart("depths", figures.PRUNING, figures.CENTRES, figures.uneven),
        0,
        True,
        "a pruning method, and kmedoids or dpc_knn",
    ),
    Claim(
        "M",
        "Clusters of soft merging collapse, those of hard merging do not.",
        "clusters in use after the last step, of those allowed: hard minus soft",
        figures.groups_apart("spatial", figures.HARD, figures.SOFT, figures.spatial("in use")),
        0,
        True,
        "hard and soft merging",
    ),
    Claim(
        "M",
        "ATS keeps patches all over the image, Top-K, EViT and DynamicViT regions.",
        "share of the neighbours of kept patches that are kept (0 = by chance): theirs minus its",
        figures.groups_apart("spatial", figures.PRUNING, ("ats",), figures.spatial("coherence")),
        0,
        True,
        "ats, and a pruning method",
    ),
    Claim(
        "M",
        "The centres of K-Medoids and DPC-KNN are not the distinctive patches, which Top-K keeps.",
        f"IoU of their centres with what topk keeps ({RESCALED})",
        lambda tables: figures.pairs_of(tables, lambda pair: "topk" in pair and bool(pair & set(figures.CENTRES))),
        0.5,
        False,
        "topk, and kmedoids or dpc_knn, at one keep rate",
    ),
)


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run directory of an analysis")
    judge_run(parser.parse_args().run)


if __name__ == "__main__":
    run()
