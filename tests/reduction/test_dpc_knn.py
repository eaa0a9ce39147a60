"""DPC-KNN against the published implementation."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from published_clusters import check_model, stage
from published_models import cases, config_of
from support import golden, golden_names, quickly, slow_but

from jaxprune import checkpoints, models
from jaxprune.errors import UserError
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import Plan, apply
from jaxprune.reduction.dpc_knn import DpcKnn, dpc_knn, mean_of_smallest, shares
from jaxprune.weights.rules import to_published


@pytest.mark.parametrize("case", cases("dpcknn"))
def test_matches_the_published_model(case):
    check_model(case, "dpcknn", "dpc_knn")


OPERATORS = golden_names("token_reduction/op_dpcknn_*")


@pytest.mark.parametrize("name", slow_but(OPERATORS[::3], OPERATORS))
def test_matches_the_published_operator(name):
    file = golden(name)
    config = config_of(file)
    x, num_clusters = jnp.asarray(file["x"]), config["clusters"]
    present = jnp.asarray(file["token_mask"] > 0) if name.endswith("_masked") else None
    cluster = jax.jit(functools.partial(dpc_knn, num_clusters=num_clusters, k=config["k"]))
    for noise in (None, jnp.asarray(file["density_noise_uniform"])):
        centres, assign = cluster(x, noise=noise, present=present)
        np.testing.assert_array_equal(centres, file["center_idx"])
        np.testing.assert_array_equal(assign, file["assignment"])
    weights = {"merged_weighted": jnp.exp(x @ file["score_weight"] + file["score_bias"])}
    weights["merged_equal"] = jnp.ones_like(weights["merged_weighted"])
    for name, weight in weights.items():
        chex.assert_trees_all_close(shares(weight, assign, num_clusters) @ x, file[name], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", [name for name in OPERATORS if not name.endswith("_masked")])
def test_shares_are_the_published_bookkeeping(name):
    file = golden(name)
    assign, num_clusters = jnp.asarray(file["assignment"]), config_of(file)["clusters"]
    weight = jnp.exp(jnp.asarray(file["x"]) @ file["score_weight"] + file["score_bias"])
    np.testing.assert_array_equal(assign, file["idx_token"])
    share = shares(weight, assign, num_clusters).sum(1)
    chex.assert_trees_all_close(share, file["agg_weight"][:, :, 0], atol=2e-5, rtol=2e-5)


def test_mean_of_smallest_counts_equal_values_as_often_as_they_occur():
    values = np.random.default_rng(0).integers(0, 6, (2, 7, 9)).astype(np.float32)
    values[0, 0] = 3.0
    values[0, 1, 1:] = np.inf
    for k in (1, 5, 9):
        expected = np.sort(values, -1)[..., :k].mean(-1)
        chex.assert_trees_all_close(mean_of_smallest(jnp.asarray(values), k), expected, rtol=1e-6)


def test_tokens_far_apart_are_still_ranked_by_density():
    # exp(-distance²) is 0 for all of them in float32.
    groups = np.repeat(np.arange(3), 8)
    means = 1e3 * np.eye(3, 6, dtype=np.float32)
    spread = 50 * np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    x = (means[groups] + np.tile(spread, (3, 1)))[None]
    centres, assign = jax.jit(functools.partial(dpc_knn, num_clusters=3))(jnp.asarray(x))
    assert sorted(groups[np.asarray(centres[0])]) == [0, 1, 2]
    np.testing.assert_array_equal(groups[np.asarray(centres[0])][np.asarray(assign[0])], groups)


@pytest.mark.slow
def test_equal_weights_has_no_parameters_and_noise_needs_a_key(rng_key):
    x = jnp.zeros((1, 12, 4))  # nothing but ties
    tokens = all_present(x, 0)
    noisy = DpcKnn(stage(12, 3, 4), density_noise=True)
    assert not jax.tree.leaves(nnx.state(noisy, nnx.Param))
    without = noisy(tokens, None)[1].kept
    np.testing.assert_array_equal(
        without, DpcKnn(stage(12, 3, 4), equal_weights=True)(tokens, None, key=rng_key)[1].kept
    )
    x = jax.random.normal(rng_key, (1, 12, 4)) * 1e-5
    draw = jax.jit(jax.vmap(lambda key: noisy(tokens._replace(x=x), None, key=key)[1].kept))
    assert len({tuple(ids.ravel()) for ids in np.asarray(draw(jax.random.split(rng_key, 4)))}) > 1


def small_vit():
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 3}
    return models.create("vit", **sizes, rngs=nnx.Rngs(0))


PLAN = Plan("dpc_knn", keep_rate=0.5, reduction_loc=(1, 2))


@pytest.mark.slow
def test_off_the_shelf_it_has_no_parameters_and_depends_on_no_seed(rng_key):
    model, images = small_vit(), jax.random.normal(rng_key, (2, 16, 16, 3))
    assert PLAN.text == ("dpc_knn@1:keep_rate=0.5,equal_weights=true+dpc_knn@2:keep_rate=0.25,equal_weights=true")
    assert Plan.from_text(PLAN.text) == PLAN == Plan("dpc_knn", 0.5, (1, 2), equal_weights=True)
    first, second = (apply(model, PLAN, rngs=rngs) for rngs in (None, nnx.Rngs(7)))
    logits = lambda network: quickly(network, lambda model, images: model(images)[0])(images)
    np.testing.assert_array_equal(logits(first), logits(second))
    fast = apply(small_vit(), PLAN)
    checkpoints.load_pretrained(fast, to_published(model))  # the weights of the dense network are all that it needs
    np.testing.assert_array_equal(logits(fast), logits(first))


@pytest.mark.slow
def test_weights_with_a_score_bring_the_trained_form(rng_key, tmp_path):
    images = jax.random.normal(rng_key, (2, 16, 16, 3))
    learned = apply(small_vit(), PLAN.with_parameters(), rngs=nnx.Rngs(3))
    tensors = to_published(learned)
    assert {name for name in tensors if "cluster" in name} == {
        f"cluster_layers.{step}.score.{kind}" for step in (0, 1) for kind in ("weight", "bias")
    }
    fast = apply(small_vit(), PLAN)
    plain = fast(images)[0]
    checkpoints.load_pretrained(fast, tensors)
    assert fast.plan == PLAN.with_parameters() and "equal_weights=false" in fast.plan.text
    np.testing.assert_array_equal(fast(images)[0], learned(images)[0])
    assert np.abs(fast(images)[0] - plain).max() > 0
    # Its plan leaves the learned scores in place.
    np.testing.assert_array_equal(apply(fast, fast.plan, rngs=nnx.Rngs(9))(images)[0], learned(images)[0])

    # Files whose card does not say which form it is hold the trained one if they hold its score.
    path = tmp_path / "fast.safetensors"
    fast.plan = Plan.from_text(PLAN.text)
    checkpoints.save_model(fast, path)
    np.testing.assert_array_equal(checkpoints.load_model(path)(images)[0], learned(images)[0])


def test_incomplete_weights_leave_the_network_as_it_was():
    tensors = to_published(apply(small_vit(), PLAN.with_parameters(), rngs=nnx.Rngs(3)))
    del tensors["cluster_layers.1.score.bias"]
    fast = apply(small_vit(), PLAN)
    with pytest.raises(UserError, match=r"missing.*blocks.2.reducer.score.bias"):
        checkpoints.load_pretrained(fast, tensors)
    assert fast.plan == PLAN and fast.blocks[1].reducer.score is None


@pytest.mark.parametrize(
    "options, says",
    [({"k": 10}, "only 9 tokens"), ({"k": 0}, "at least 1"), ({"equal_weights": False}, "give rngs=")],
)
def test_refuses_options_without_sense(options, says):
    with pytest.raises(UserError, match=says):
        DpcKnn(stage(9, 3, 4), **options)
