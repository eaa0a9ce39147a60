"""Intervals that reports print, against SciPy's: of shares, of paired differences, and bootstrapped ones."""

import numpy as np
import pytest
from scipy import stats
from which_tokens.claims import judge

from jaxprune.commands.analyse.tables import outcomes, proxies
from jaxprune.measures import rank_correlation
from jaxprune.measures.intervals import mean_share, paired_difference, share, wilson_interval
from jaxprune.reduction import DENSE

TABLES = ("rates", "methods", "radial", "networks", "data_sets", "anchors", "spatial", "depths")
MAPS_ALIKE = "Maps of the mean depth of patches are much alike on different data."
EMD = "The earth mover's distance says what the other measures of maps do."
PROCRUSTES = "The Procrustes distance of features is a moderate to strong proxy of accuracy."
CKA = "CKA is as good a proxy of accuracy as Procrustes."


def rho(x, y, axis=-1):
    """Spearman's correlation along the last axis."""
    ranks = (stats.rankdata(values, axis=-1) for values in (x, y))
    first, second = (values - values.mean(-1, keepdims=True) for values in ranks)
    return (first * second).sum(-1) / np.sqrt((first**2).sum(-1) * (second**2).sum(-1))


def tau(x, y, axis=-1):
    """Kendall's correlation (tau-b) along the last axis."""
    first, second = (np.sign(values[..., :, None] - values[..., None, :]) for values in (x, y))
    untied = np.abs(first).sum((-2, -1)) * np.abs(second).sum((-2, -1))
    return (first * second).sum((-2, -1)) / np.sqrt(untied)


def bootstrapped(columns, statistic, draws=2000):
    """The ends of SciPy's 95 % percentile interval, resampling the columns together."""
    settings = {"paired": True, "vectorized": True, "method": "percentile", "n_resamples": draws, "batch": 500}
    settings["random_state"] = np.random.default_rng(9)
    return tuple(stats.bootstrap(columns, statistic, **settings).confidence_interval)


def pairs(seed, count=30):
    x, noise = np.random.default_rng(seed).normal(size=(2, count))
    return x, x + noise


def verdicts(**tables):
    return {row["claim"]: row for row in judge({**dict.fromkeys(TABLES, ()), **tables})}


@pytest.mark.parametrize(("correct", "total"), [(0, 5), (3, 7), (9, 10), (731, 1000)])
def test_shares_have_wilsons_interval(correct, total):
    expected = stats.binomtest(correct, total).proportion_ci(0.95, method="wilson")
    assert wilson_interval(correct, total) == pytest.approx(tuple(expected), abs=1e-4)


def test_an_interval_of_a_share_stays_between_zero_and_one():
    ends = [wilson_interval(correct, total) for total in range(1, 200) for correct in (0, total)]
    assert min(low for low, _ in ends) == 0 and max(high for _, high in ends) == 1


def test_a_paired_difference_has_the_normal_interval_with_two_more_images():
    rng = np.random.default_rng(0)
    labels, dense = np.zeros(400, int), (rng.random(400) < 0.2).astype(int)
    topk = np.where(rng.random(400) < 0.25, 1 - dense, dense)
    answered = outcomes.MemberPredictions(outcomes.CLASSIFIER, labels, {("vit", DENSE): dense, ("vit", "topk"): topk})
    row = answered.columns(("vit", "topk"), ("vit", DENSE))
    gained = (topk == 0).astype(float) - (dense == 0)
    more = np.concatenate([gained, [0, 0]])
    centre, variance = more.mean(), (np.abs(gained).sum() + 1) / len(more) - more.mean() ** 2
    low, high = stats.norm.interval(0.95, centre, np.sqrt(variance / len(more)))
    assert row["change"] == pytest.approx(gained.mean())
    assert (row["change low"], row["change high"]) == pytest.approx((low, high), abs=1e-5)


@pytest.mark.parametrize("images", [5, 60])
def test_a_difference_of_none_is_open_on_both_sides(images):
    right = np.arange(images) % 2 == 0
    value, low, high = paired_difference(right, right)
    assert value == 0 and low == -high and 0 < high < 3 / images


def test_paired_intervals_cover_the_true_difference():
    """Over many samples, 95 of 100 intervals contain the difference that all images would have."""
    rng, hits, tries, images = np.random.default_rng(1), 0, 400, 200
    for _ in range(tries):
        # The network is right on 70 %; the plan loses 10 % of the images, and wins 5 %.
        dense, changed = rng.random(images) < 0.7, rng.random(images)
        plan = np.where(changed < 0.1, False, np.where(changed < 0.15, True, dense))
        answers = {("vit", DENSE): dense.astype(int), ("vit", "topk"): plan.astype(int)}
        answered = outcomes.MemberPredictions(outcomes.CLASSIFIER, np.ones(images, int), answers)
        row = answered.columns(("vit", "topk"), ("vit", DENSE))
        hits += row["change low"] <= -0.1 * 0.7 + 0.05 * 0.3 <= row["change high"]
    assert 0.92 <= hits / tries <= 0.98


@pytest.mark.parametrize("seed", range(4))
def test_rank_correlations_have_bootstrap_intervals(seed):
    x, y = pairs(seed)
    for correlation, statistic in ((rank_correlation.spearman(x, y), rho), (rank_correlation.kendall(x, y), tau)):
        assert correlation.value == pytest.approx(statistic(x, y))
        assert (correlation.low, correlation.high) == pytest.approx(bootstrapped((x, y), statistic), abs=0.04)


def test_proxies_of_accuracy_have_bootstrap_intervals():
    x, y = pairs(4)
    names = {"network": "vit", "anchor method": DENSE, "layer": 3}
    absent = dict.fromkeys(proxies.METRICS, np.nan)
    rows = [{**names, **absent, "Procrustes": a, "accuracy difference": b} for a, b in zip(x, y, strict=True)]
    (row,) = proxies.correlations(rows)
    assert (row["metric"], row["pairs"], row["Spearman"]) == ("Procrustes", 30, pytest.approx(rho(x, y)))
    for name, statistic in (("Spearman", rho), ("Kendall", tau)):
        ends = row[f"{name} low"], row[f"{name} high"]
        assert ends == pytest.approx(bootstrapped((x, y), statistic), abs=0.04)


def test_figures_of_claims_have_bootstrap_intervals():
    rng, count = np.random.default_rng(5), 60
    alike, emd, jsd = rng.uniform(0.3, 0.9, count), *pairs(6, count)
    rows = [{"method": "topk", "Spearman": r, "EMD": e, "JSD": j} for r, e, j in zip(alike, emd, jsd, strict=True)]
    judged = verdicts(data_sets=rows)
    ends = lambda claim: (judged[claim]["here low"], judged[claim]["here high"])
    half = stats.norm.ppf(0.975) * stats.sem(alike)
    assert ends(MAPS_ALIKE) == pytest.approx((alike.mean() - half, alike.mean() + half), abs=0.15 * half)
    assert ends(EMD) == pytest.approx(bootstrapped((emd, jsd), rho), abs=0.05)


def test_figures_of_proxies_have_bootstrap_intervals():
    rng, count = np.random.default_rng(7), 60
    lost = rng.normal(size=count)
    near, far = lost + 0.5 * rng.normal(size=count), lost + rng.normal(size=count)
    names = {"network": "vit", "anchor method": DENSE, "layer": 11}
    columns = zip(lost, near, far, strict=True)
    rows = [{**names, "accuracy difference": d, "Procrustes": p, "CKA": c, "PWCCA": np.nan} for d, p, c in columns]
    judged = verdicts(anchors=rows)
    ends = lambda claim: (judged[claim]["here low"], judged[claim]["here high"])
    assert judged[CKA]["here"] == pytest.approx(rho(far, lost) - rho(near, lost))
    assert ends(PROCRUSTES) == pytest.approx(bootstrapped((near, lost), rho), abs=0.04)
    better = lambda c, p, d, axis=-1: rho(c, d) - rho(p, d)
    assert ends(CKA) == pytest.approx(bootstrapped((far, near, lost), better), abs=0.05)


def test_means_of_shares_are_narrower_the_less_they_vary():
    rng = np.random.default_rng(0)
    counts = rng.random(200) < 0.1
    assert mean_share(counts) == share(int(counts.sum()), 200) and mean_share(np.zeros(9)) == share(0, 9)
    shares = rng.beta(5, 45, (300, 200))  # of mean .1, and much alike
    spans = [mean_share(row) for row in shares]
    assert max(span.half for span in spans) < mean_share(counts).half / 3
    assert np.mean([span.low <= 0.1 <= span.high for span in spans]) > 0.92
    few = mean_share(np.full(4, 0.1))  # equal by chance
    assert few.low < 0.05 and few.high > 0.2


def test_a_difference_of_shares_is_at_most_one():
    every, none = np.ones(3, bool), np.zeros(3, bool)
    assert paired_difference(every, none).high == 1 and paired_difference(none, every).low == -1
