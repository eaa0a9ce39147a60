"""SiT against the published implementation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from published_clusters import check_model, fill, stage
from published_models import cases, config_of
from support import golden, golden_names

from jaxprune.errors import UserError
from jaxprune.reduction.sit import Sit


@pytest.mark.parametrize("case", cases("sit"))
def test_matches_the_published_model(case):
    check_model(case, "sit", "sit")


@pytest.mark.parametrize("name", golden_names("token_reduction/op_sit_*"))
def test_matches_the_published_operator(name):
    file = golden(name)
    _, n, d = file["x"].shape
    sit = fill(Sit(stage(n, config_of(file)["clusters"], d), rngs=nnx.Rngs(0)), file)
    rows, weights = jax.jit(sit.mix)(jnp.asarray(file["x"]))
    chex.assert_trees_all_close(weights, file["assignment"], atol=1e-5, rtol=1e-5)
    chex.assert_trees_all_close(rows, file["y"], atol=2e-5, rtol=2e-5)
    chex.assert_trees_all_close(np.float64(rows), file["y_f64"], atol=1e-4, rtol=1e-4)


def test_needs_rngs():
    with pytest.raises(UserError, match="give rngs="):
        Sit(stage(9, 3, 4))
