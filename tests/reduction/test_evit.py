"""EViT against the published implementation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published_models import CLOSE, cases, check_block, check_features, check_kept, check_logits, prefixed, run, stage
from support import golden_names, quick_compile

from jaxprune.reduction import Attended
from jaxprune.reduction.evit import EViT, warm_up


@pytest.mark.slow
@pytest.mark.parametrize("name", cases("evit"))
def test_model(name):
    got = run(name, "evit", "evit")
    check_logits(got)
    check_features(got)
    check_kept(got)
    for index, layer in got.layers():
        row_map = got.aux.steps[index].row_map
        fused = [np.flatnonzero(rows == rows.max()) for rows in row_map]
        np.testing.assert_array_equal(fused, got.file[f"inattentive_{layer}"])


@pytest.mark.parametrize("name", golden_names("token_reduction/op_evit_block_*"))
def test_block(name):
    file, keep, got = check_block(name, EViT)
    kept = np.asarray(got.aux.kept)
    np.testing.assert_array_equal(kept[:, :-1], file["kept_idx"])
    np.testing.assert_array_equal(kept[:, -1], -1)
    fused = [np.flatnonzero(rows == keep) for rows in np.asarray(got.aux.row_map)]
    np.testing.assert_array_equal(fused, file["inattentive_idx"])
    chex.assert_trees_all_close(np.asarray(got.tokens.x)[:, -1:], file["fused_token"], **CLOSE)


def test_renormalised_fused_token_is_a_weighted_mean():
    x = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    attn = jnp.asarray(np.tile(np.float32([0.1, 0.3, 0.05, 0.1, 0.25, 0.2]), (2, 2, 1)))
    call = jax.jit(EViT(stage(5, 2), renormalise=True), compiler_options=quick_compile())
    reduced, _ = call(prefixed(x), Attended(cls_attn=attn))
    weighed = (0.05 * x[:, 2] + 0.1 * x[:, 3] + 0.2 * x[:, 5]) / 0.35
    chex.assert_trees_all_close(np.asarray(reduced.x)[:, -1], weighed, rtol=1e-5)
    np.testing.assert_array_equal(reduced.size, [[1, 1, 1, 3]] * 2)


def test_a_renormalised_token_of_absent_rows_is_zero():
    x = np.random.default_rng(0).normal(size=(1, 6, 4)).astype(np.float32)
    attn, policy = jnp.asarray(np.float32([[[0.1, 0.5, 0, 0, 0.4, 0]]])), jnp.asarray([[1.0, 1, 0, 0, 1, 0]])
    call = jax.jit(EViT(stage(5, 2, num_heads=1), renormalise=True), compiler_options=quick_compile())
    reduced, _ = call(prefixed(x, policy)._replace(policy=policy), Attended(cls_attn=attn))
    np.testing.assert_array_equal(np.asarray(reduced.x)[:, -1], 0)
    np.testing.assert_array_equal(reduced.policy, [[1, 1, 1, 0]])


def test_warm_up_falls_from_one_to_the_keep_rate():
    rates = [warm_up(epoch, 0.5, start=10, epochs=20) for epoch in (0, 9, 10, 20, 30, 100)]
    np.testing.assert_allclose(rates, [1, 1, 1, 0.75, 0.5, 0.5])
