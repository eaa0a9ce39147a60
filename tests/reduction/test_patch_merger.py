"""PatchMerger against the published implementation."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from published_clusters import check_model, fill, stage
from support import golden, slow_but

from jaxprune.reduction.patch_merger import PatchMerger


@pytest.mark.parametrize("case", slow_but(["p6"], ["p6", "p12"]))
def test_matches_the_published_model(case):
    check_model(case, "patchmerger", "patch_merger")


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("scaled", ["", "_scaled"])
def test_matches_the_published_operator(number, scaled):
    file = golden(f"token_reduction/op_patchmerger{scaled}_{number}")
    _, n, d = file["x"].shape
    place = stage(n, json.loads(str(file["config"]))["clusters"], d)
    merger = fill(PatchMerger(place, scaled=bool(scaled), rngs=nnx.Rngs(0)), file)
    rows, weights = jax.jit(merger.mix)(jnp.asarray(file["x"]))
    chex.assert_trees_all_close(weights, file["assignment"], atol=1e-5, rtol=1e-5)
    chex.assert_trees_all_close(rows, file["y"], atol=2e-5, rtol=2e-5)
    chex.assert_trees_all_close(np.float64(rows), file["y_f64"], atol=1e-4, rtol=1e-4)
