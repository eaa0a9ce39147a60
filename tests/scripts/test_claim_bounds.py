"""Every claim of "Which Tokens to Use?": its bound and its side of it, by tables whose figures are just beside it."""

import numpy as np
import pytest
from which_tokens.claims import judge

# Section of the supplement, finding, side and bound. Differences have the bound 0, but a proxy may be .1 weaker and be
# as good; "much alike" and "consistent" begin halfway from chance to equality, a moderate correlation at .4.
CLAIMS = [
    ("D", "At high keep rates ATS uses far fewer rows in the last step than its budget.", "below 0.75"),
    ("G", "What a pruning method keeps is consistent across keep rates.", "above 0.5"),
    ("G", "ATS and the centres of K-Medoids and DPC-KNN are less consistent than that.", "above 0"),
    ("G", "Clusters of hard merging are consistent across keep rates, more than those of soft merging.", "above 0"),
    ("G", "Clusters of SiT and PatchMerger are consistent in the first step, and no longer in the last.", "above 0"),
    ("G", "What pruning keeps is not consistent across backbones.", "below 0.5"),
    ("G", "Clusters of hard merging are consistent across backbones at keep rates above .25.", "above 0.5"),
    ("G", "At .25 they are much less so.", "above 0"),
    ("G", "Clusters of SiT and Sinkhorn are not consistent across backbones.", "above 0"),
    ("H", "Maps of the mean depth of patches are much alike on different data.", "above 0.5"),
    ("H", "The earth mover's distance says what the other measures of maps do.", "above 0.5"),
    ("I", "Learned patterns have little in common with fixed radial ones.", "below 0.5"),
    ("J", "CKA is as good a proxy of accuracy as Procrustes.", "above -0.1"),
    ("J", "PWCCA is as good a proxy of accuracy as Procrustes.", "above -0.1"),
    ("K", "The Procrustes distance of features is a moderate to strong proxy of accuracy.", "above 0.4"),
    ("K", "IoU with Top-K is also a proxy.", "above 0.4"),
    ("K", "NMI with K-Medoids is also a proxy.", "above 0.4"),
    ("L", "Top-K and EViT keep much the same patches.", "above 0"),
    ("L", "DynamicViT keeps patches nearer to the centre than Top-K and EViT do.", "above 0"),
    ("L", "Patches pass fewer blocks under ATS than under Top-K and EViT.", "above 0"),
    ("L", "The depth of K-Medoids' and DPC-KNN's centres is more even over the image than that of pruning.", "above 0"),
    ("M", "Clusters of soft merging collapse, those of hard merging do not.", "above 0"),
    ("M", "ATS keeps patches all over the image, Top-K, EViT and DynamicViT regions.", "above 0"),
    ("M", "The centres of K-Medoids and DPC-KNN are not the distinctive patches, which Top-K keeps.", "below 0.5"),
]
IMAGES, PAIRS = 400, 900
# How far from its bound a figure is; a rank correlation of `PAIRS` pairs is only made, and known, to about .03.
OFF, OFF_OF_RANKS = 0.02, 0.08


def is_correlation(section, claim):
    return section in "JK" or "earth mover" in claim


def step(method, number, **columns):
    row = {"network": "vit", "method": method, "plan": method, "lower plan": f"{method}, lower", "step": number}
    return {**row, "images": IMAGES, **columns}


def rescaled(share, chance=0.2):
    """The overlap at a share of the way from chance to equality."""
    return chance + (1 - chance) * share


def rates(off):
    """Rescaled IoA .5 + off of pruning, .5 of the others; homogeneity .6 + off of hard merging, .6 of soft merging."""
    ioa = lambda share: {"IoA": rescaled(share), "IoA chance": 0.2}
    kept = [step("topk", 1, **ioa(0.5 + off)), step("dynamicvit", 1, **ioa(0.5 + off))]
    kept += [step("ats", 1, **ioa(0.4)), step("kmedoids", 1, **ioa(0.6))]
    clusters = [step("tome", 1, homogeneity=0.7 + off), step("kmedoids", 1, homogeneity=0.5 + off)]
    clusters += [step("sit", 1, homogeneity=0.6 + off), step("sit", 2, homogeneity=0.6)]
    return [*kept, *clusters, step("sinkhorn", 1, homogeneity=0.6 - off)]


def networks(off):
    """Rescaled IoU .5 + off; NMI .5 + off of hard merging, .5 at a keep rate of .25, .5 + off / 2 - off of soft."""
    both = {"other network": "deit"}
    ioa = [step(name, 1, IoU=rescaled(0.5 + off), **{"IoU chance": 0.2}, **both) for name in ("evit", "ats")]
    high, low = {"keep rate": 0.5, **both}, {"keep rate": 0.25, **both}
    hard = [step("tome", 1, NMI=0.5 + off, **high), step("tome", 1, NMI=0.5, **low)]
    return [*ioa, *hard, step("sit", 1, NMI=0.5 - off / 2, **high)]


def methods(off):
    """Rescaled IoU .7 + off of Top-K and EViT, .7 of either and others; .5 + off of Top-K and centres."""
    shares = {("topk", "evit"): 0.7 + off, ("topk", "ats"): 0.8, ("dynamicvit", "evit"): 0.6}
    shares |= {("topk", "kmedoids"): 0.4 + off, ("dpc_knn", "topk"): 0.6 + off, ("evit", "kmedoids"): 0.1}
    return [
        step(first, 1, **{"other method": second, "IoU": rescaled(share), "IoU chance": 0.2})
        for (first, second), share in shares.items()
    ]


def radial(off):
    """Rescaled IoU with three norms, .5 + off on average."""
    shares = {"l1": 0.6 + off, "l2": 0.5 + off, "linf": 0.4 + off}
    columns = {norm: rescaled(share) for norm, share in shares.items()}
    return [step("topk", 1, **columns, **{f"{norm} chance": 0.2 for norm in shares})]


def spatial(off):
    """Rows in use of ATS, .75 + off of the rows allowed; of the others those of the claims in L and M."""
    at = lambda method, **columns: step(method, 1, allowed=50, patches=100, **columns)
    coherent = lambda share: {"coherence": rescaled(share), "coherence chance": 0.2}
    ats = [step("ats", 1, allowed=70, patches=100), step("ats", 2, allowed=49, patches=100)]
    ats = [{**ats[0], "in use": 0.99}, {**ats[1], "in use": 0.75 + off}]
    distance = "centre distance"
    rows = [at("topk", **{distance: 0.9 + off}, **coherent(0.5 + off)), at("evit", **{distance: 0.7 + off})]
    rows += [at("dynamicvit", **{distance: 0.8}), {**at("ats", **coherent(0.5)), "plan": "ats, lower"}]
    return [*ats, *rows, at("tome", **{"in use": 0.6 + off}), at("patch_merger", **{"in use": 0.6})]


def depths(off):
    """Mean depth in blocks of Top-K, off above that of ATS; unevenness of pruning, off above that of centres."""
    uneven = lambda value: {"unevenness": value, "unevenness low": value, "unevenness high": value}
    at = lambda method, **columns: {**step(method, 1, **columns), "allowed": "50, 25", "step": None}
    rows = [at("topk", depth=6 + off, **uneven(0.9 + off)), at("ats", depth=6.0)]
    return [*rows, at("kmedoids", **uneven(0.9))]


def correlated(rho, others):
    """A column whose Pearson correlation with `others` is that of normal variables of this Spearman's correlation."""
    noise = np.random.default_rng(2).normal(size=len(others))
    strength = 2 * np.sin(np.pi * rho / 6)
    unit = (others - others.mean()) / others.std()
    noise = noise - noise.mean() - (noise @ unit) / len(unit) * unit
    return strength * unit + np.sqrt(1 - strength**2) * noise / noise.std()


def data_sets(off, off_of_ranks):
    """Maps of the mean depth with a correlation of .5 + off, and two distances between them."""
    alike = 0.5 + off + np.resize([-0.01, 0.01], PAIRS)
    jsd = np.random.default_rng(0).normal(size=PAIRS)
    columns = zip(alike, correlated(0.5 + off_of_ranks, jsd), jsd, strict=True)
    return [{"method": "topk", "Spearman": value, "EMD": e, "JSD": j} for value, e, j in columns]


def anchors(off):
    """Correlations with the difference in accuracy: Procrustes .4 + off, CKA and PWCCA off - .1 from that."""
    lost, rows = np.random.default_rng(1).normal(size=PAIRS), []
    for anchor in ("dense", "topk", "kmedoids"):
        columns = {"Procrustes": correlated(0.4 + off, lost), "CKA": correlated(0.3 + 2 * off, lost)}
        columns["PWCCA"] = columns["CKA"]
        columns["IoU"] = columns["NMI"] = -columns["Procrustes"]
        names = {"network": "vit", "anchor method": anchor, "layer": 11}
        for place in range(PAIRS):
            row = {name: column[place] for name, column in columns.items()}
            rows.append({**names, **row, "accuracy difference": lost[place]})
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1, -1])
def test_a_claim_holds_on_its_side_of_the_bound_and_fails_on_the_other(sign):
    off, off_of_ranks = OFF * sign, OFF_OF_RANKS * sign
    tables = {make.__name__: make(off) for make in (rates, methods, radial, networks, spatial, depths)}
    rows = judge({**tables, "data_sets": data_sets(off, off_of_ranks), "anchors": anchors(off_of_ranks)})
    assert [(row["section"], row["claim"], row["holds if"]) for row in rows] == CLAIMS
    for row in rows:
        side, bound = row["holds if"].split()
        ranks = is_correlation(row["section"], row["claim"])
        expected = float(bound) + (off_of_ranks if ranks else off)
        assert row["here"] == pytest.approx(expected, abs=0.03 if ranks else 1e-6), row["claim"]
        assert row["here low"] <= row["here"] <= row["here high"]
        assert row["verdict"] == ("holds" if (sign > 0) == (side == "above") else "does not hold"), row["claim"]
