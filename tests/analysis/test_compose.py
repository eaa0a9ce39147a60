"""Steps that know only the rows they got, composed to the original patches."""

import jax
import numpy as np
import pytest
from flax import nnx
from support import golden, golden_names, in_names, quickly

from jaxprune import models, reduction
from jaxprune.analysis.compose import compose_assignments, compose_kept


def test_published_assignments():
    file = golden("token_reduction/metric_compose_assignments")
    for plan in in_names(file, r"stage(\d+)_0"):
        steps = in_names(file, rf"stage{plan}_(\d+)")
        found = compose_assignments([file[f"stage{plan}_{step}"] for step in sorted(steps, key=int)])
        for step, assign in enumerate(found):
            np.testing.assert_array_equal(assign, file[f"composed{plan}_{step}"])


@pytest.mark.parametrize("name", golden_names("token_reduction/model_*_evit"))
def test_published_kept_ids(name):
    file = golden(name)
    steps = sorted(map(int, in_names(file, r"kept_(\d+)")))
    found = compose_kept([file[f"kept_{step}"] for step in steps])
    assert len(steps) > 1
    for step, kept in zip(steps, found, strict=True):
        np.testing.assert_array_equal(kept, file[f"kept_origin_{step}"])


@pytest.mark.slow
def test_reports_of_each_step_composed_are_what_a_network_reports():
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 4, "num_heads": 2, "num_classes": 3}
    vit = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    fast = reduction.apply(vit, reduction.Plan("evit", 0.6, (1, 2, 3)))
    _, aux = quickly(fast, lambda model, images: model(images))(jax.random.normal(jax.random.key(0), (2, 16, 16, 3)))
    assigned = compose_assignments([np.asarray(step.row_map) for step in aux.steps])
    kept = compose_kept([np.asarray(step.kept) for step in aux.steps])
    for ours, theirs in zip((*assigned, *kept), (*aux.assign, *aux.kept), strict=True):
        np.testing.assert_array_equal(ours, theirs)
