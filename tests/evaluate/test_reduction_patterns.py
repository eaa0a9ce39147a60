"""Statistics of patterns and their comparisons, from the patterns of several images to means and deviations."""

import itertools
import json

import numpy as np
import pytest
from support import golden, in_names

from jaxprune.evaluate.reduction_patterns import Patterns, clusters_alike, overlaps, rates
from jaxprune.measures.overlap import as_masks

FILE = golden("token_reduction/pipeline_rates")
CONFIG = json.loads(str(FILE["config"]))
RATES, STAGES = [round(100 * rate) for rate in CONFIG["rates"]], CONFIG["stages"]


def stage_of_all(method, rate, stage):
    images = range(CONFIG["images"])
    return np.stack([FILE[f"{method}{rate}.img{image}.stage{stage}"] for image in images]).astype(int)


def pruned(rate):
    kept = [stage_of_all("topk", rate, stage) for stage in STAGES]
    masks = [as_masks(ids, CONFIG["P"]) for ids in kept]
    # Any rows: only that dropped patches have none counts.
    assign = [np.where(mask, np.cumsum(mask, 1) - 1, -1) for mask in masks]
    return Patterns.of(kept, assign, tuple(STAGES), CONFIG["depth"])


def merged(rate):
    """The row that holds each original patch; the file has that of each row of the stage before."""
    rows = [stage_of_all("tome", rate, stage) for stage in STAGES]
    return list(itertools.accumulate(rows, lambda before, after: np.take_along_axis(after, before, axis=-1)))


@pytest.mark.parametrize("rate", RATES)
def test_rates_and_depths(rate):
    found = pruned(rate)
    stats = {name: FILE[f"stats.topk{rate}.{name}"] for name in ("mean_reduction", "mean_depth", "std_depth")}
    means, deviations = np.transpose(found.rates())
    np.testing.assert_allclose(means, stats["mean_reduction"], atol=1e-12)
    np.testing.assert_allclose(deviations, FILE[f"stats.topk{rate}.std_reduction"], atol=1e-12)
    depths = found.depths()
    np.testing.assert_allclose(depths.mean(), stats["mean_depth"], rtol=1e-12)
    np.testing.assert_allclose(depths.std(), stats["std_depth"], rtol=1e-12)
    np.testing.assert_allclose(depths.mean(0), FILE[f"stats.topk{rate}.mean_depth_spatial"], rtol=1e-12)
    np.testing.assert_allclose(depths.std(0), FILE[f"stats.topk{rate}.std_depth_spatial"], atol=1e-12)


@pytest.mark.parametrize("rate", RATES)
def test_rates_of_merged_patches_count_clusters(rate):
    means, deviations = np.transpose(rates([stage_of_all("tome", rate, stage) for stage in STAGES], CONFIG["P"]))
    np.testing.assert_allclose(means, FILE[f"stats.tome{rate}.mean_reduction"], atol=1e-12)
    np.testing.assert_allclose(deviations, FILE[f"stats.tome{rate}.std_reduction"], atol=1e-12)


@pytest.mark.parametrize(("more", "fewer"), in_names(FILE, r"pruning\.(\d+)vs(\d+)\..*"))
def test_pairs_of_keep_rates(more, fewer):
    kept = pruned(more).masks, pruned(fewer).masks
    clusters = merged(fewer), merged(more)
    names = {"homogeneity": "Homogeneity", "completeness": "Completeness", "NMI": "NMI"}
    for stage, first, second, classes, others in zip(STAGES, *kept, *clusters, strict=True):
        for metric, found in overlaps(first, second).items():
            for which, value in (("Mean", found.mean), ("std", found.std)):
                wanted = FILE[f"pruning.{more}vs{fewer}.Stage-{stage}-{which}-{metric}"]
                np.testing.assert_allclose(value, wanted, atol=1e-6)
        for metric, found in clusters_alike(classes, others).items():
            for which, value in (("Mean", found.mean), ("std", found.std)):
                wanted = FILE[f"merging.{more}vs{fewer}.{names[metric]}-Stage-{stage}-{which}"]
                np.testing.assert_allclose(value, wanted, atol=1e-6)
