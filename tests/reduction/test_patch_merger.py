"""PatchMerger against the published implementation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from published_clusters import check_model, fill, stage
from published_models import cases, config_of
from support import golden, golden_names

from jaxprune.reduction.patch_merger import PatchMerger


@pytest.mark.parametrize("case", cases("patchmerger"))
def test_matches_the_published_model(case):
    check_model(case, "patchmerger", "patch_merger")


@pytest.mark.parametrize("name", golden_names("token_reduction/op_patchmerger_*"))
def test_matches_the_published_operator(name):
    file = golden(name)
    _, n, d = file["x"].shape
    place = stage(n, config_of(file)["clusters"], d)
    merger = fill(PatchMerger(place, scaled="_scaled_" in name, rngs=nnx.Rngs(0)), file)
    rows, weights = jax.jit(merger.mix)(jnp.asarray(file["x"]))
    chex.assert_trees_all_close(weights, file["assignment"], atol=1e-5, rtol=1e-5)
    chex.assert_trees_all_close(rows, file["y"], atol=2e-5, rtol=2e-5)
    chex.assert_trees_all_close(np.float64(rows), file["y_f64"], atol=1e-4, rtol=1e-4)
