"""The findings of "Which Tokens to Use?", and whether they hold for the networks and images of an analysis.

Haurum et al., 2023, supplement D to M: one row per claim, with the figure measured here, its 95 % interval, and the
bound that it is compared with. Every figure is computed from the tables of the analysis.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxprune.commands.analyse.tables import claim_figures as figures
from jaxprune.commands.analyse.tables.claim_figures import RESCALED, Figure, Tables
from jaxprune.reduction import DENSE

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decidable"


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


def judge(tables: Tables) -> list[dict[str, Any]]:
    """Returns one row per claim: its figure with an interval, the bound, and the verdict.

    A claim holds if the whole interval is on its side of the bound, and fails if the whole interval is on the other.

    Args:
      tables: rows by name: `rates`, `methods`, `radial`, `networks`, `data_sets`, `anchors`, `spatial`, `depths`.
    """
    rows = []
    for claim in CLAIMS:
        found = claim.measure(tables)
        # A network that drops nothing, or constant maps, give no figure.
        if found is None or not math.isfinite(found.value):
            value, low, high, verdict = math.nan, math.nan, math.nan, f"{OPEN}: needs {claim.needs}"
        else:
            value, low, high = found
            verdict = verdict_of(found, claim.bound, above=claim.above)
        rows.append(
            {
                "section": claim.section,
                "claim": claim.text,
                "figure": claim.figure,
                "here": value,
                "here low": low,
                "here high": high,
                "holds if": f"{'above' if claim.above else 'below'} {claim.bound:g}",
                "verdict": verdict,
            }
        )
    return rows


def verdict_of(found: Figure, bound: float, *, above: bool) -> str:
    """Returns whether an interval is above or below a bound.

    >>> verdict_of(Figure(0.4, 0.3, 0.5), 0, above=True), verdict_of(Figure(0.1, -0.1, 0.3), 0, above=True)
    ('holds', 'not decidable')
    """
    if math.isnan(found.low) or math.isnan(found.high) or found.low <= bound <= found.high:
        return OPEN
    return HOLDS if (found.low > bound) == above else FAILS


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
        figures.maps_alike,
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
        figures.apart("spatial", ("topk", "evit"), ("dynamicvit",), figures.spatial("centre distance")),
        0,
        True,
        "dynamicvit, and topk or evit",
    ),
    Claim(
        "L",
        "Patches pass fewer blocks under ATS than under Top-K and EViT.",
        "mean depth in blocks: theirs minus its",
        figures.apart("depths", ("topk", "evit"), ("ats",), lambda rows: figures.mean_of(rows, "depth")),
        0,
        True,
        "ats, and topk or evit",
    ),
    Claim(
        "L",
        "The depth of K-Medoids' and DPC-KNN's centres is more even over the image than that of pruning.",
        "standard deviation of the mean depth over places, in blocks: of pruning minus theirs",
        figures.apart("depths", figures.PRUNING, figures.CENTRES, figures.uneven),
        0,
        True,
        "a pruning method, and kmedoids or dpc_knn",
    ),
    Claim(
        "M",
        "Clusters of soft merging collapse, those of hard merging do not.",
        "clusters in use after the last step, of those allowed: hard minus soft",
        figures.apart("spatial", figures.HARD, figures.SOFT, figures.spatial("in use")),
        0,
        True,
        "hard and soft merging",
    ),
    Claim(
        "M",
        "ATS keeps patches all over the image, Top-K, EViT and DynamicViT regions.",
        "share of the neighbours of kept patches that are kept (0 = by chance): theirs minus its",
        figures.apart("spatial", figures.PRUNING, ("ats",), figures.spatial("coherence")),
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
