"""The ranker against the published numbers: scores, training loss and gradients."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import assert_gradients, golden, golden_names, in_names, nhwc, weights

from jaxprune import checkpoints, flops, losses, ranking, reduction
from jaxprune.errors import UserError
from jaxprune.nn.batch_norm import batch_stats
from jaxprune.nn.params import merge, split

FILE = golden(golden_names("ltrp_papr/ltrp_labels_*")[0])
SIZES = json.loads(str(FILE["config_json"]))
IMAGES, IDS_KEEP = jnp.asarray(nhwc(FILE["images"])), jnp.asarray(FILE["ids_keep"])


def published():
    model = ranking.create(
        "vit",
        img_size=SIZES["img"],
        patch_size=SIZES["patch"],
        embed_dim=SIZES["rank_dim"],
        depth=SIZES["rank_depth"],
        num_heads=SIZES["rank_heads"],
        mlp_ratio=float(SIZES["mlp_ratio"]),
        rngs=nnx.Rngs(0),
    )
    both = {f"score_net.{name}": value for name, value in weights(FILE, "ranker/").items()}
    both |= {f"mim.{name}": value for name, value in weights(FILE, "mae/").items()}
    return checkpoints.load_pretrained(model, both, ignored=("mim.*",))


def test_scores_loss_and_gradients_match():
    parts = split(published())

    def loss_fn(params):
        ranker = merge(parts.graph, params, parts.rest)
        sparse, full = ranker.scores(IMAGES, IDS_KEEP), ranker.scores(IMAGES)
        scores = jnp.take_along_axis(sparse, IDS_KEEP, axis=1)
        loss = losses.list_mle_loss(scores, jnp.asarray(FILE["s"]), reduce_fn=jnp.mean)
        return loss, (scores, full, ranker(IMAGES)[0])

    (loss, (scores, full, called)), grads = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(parts.params)
    chex.assert_trees_all_close(np.asarray(scores, np.float64), FILE["y_visible_f64"], rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_close(np.asarray(full, np.float64), FILE["y_full_f64"], rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_close(called, full)
    np.testing.assert_allclose(loss, FILE["loss_f64"], rtol=1e-4)
    assert_gradients(parts, grads, FILE, "grad/", tolerance=1e-3)
    for expected in (FILE[name] for name in in_names(FILE, r"(topk_asc_\d+)")):
        chosen = np.argsort(full, axis=1, kind="stable")[:, -expected.shape[1] :]
        np.testing.assert_array_equal(chosen, expected)


def test_a_resnet_ranks_whole_images(rng_key):
    sizes = {"layers": (1, 1), "width": 4, "img_size": 32, "patch_size": 8}
    ranker = ranking.create("resnet18", **sizes, rngs=nnx.Rngs(0))
    images = jax.random.normal(rng_key, (4, 32, 32, 3)) + 1
    before = split(ranker).rest

    @jax.jit
    def train(images):
        ranker = merge(split_ranker.graph, split_ranker.params, before)
        features = ranker.conv1(images)
        return ranker.scores(images, train=True), batch_stats(split(ranker).rest, before), features

    split_ranker = split(ranker)
    scores, seen, features = train(images)
    assert scores.shape == (4, 16) and set(seen) == set(before)
    chex.assert_trees_all_close(seen["bn1.mean"], features.mean((0, 1, 2)), atol=1e-5)
    chex.assert_trees_all_close(seen["bn1.var"], features.var((0, 1, 2), ddof=1), rtol=1e-4)
    with pytest.raises(UserError, match="sparse=False"):
        ranker.scores(images, jnp.zeros((4, 2), jnp.int32))


def test_a_ranker_of_another_kind_is_refused():
    with pytest.raises(UserError, match="Did you mean 'vit_tiny_patch16_224'"):
        ranking.create("vit_tny_patch16_224", rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="cannot be a ranker"):
        ranking.create("mobileone_s0", rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="num_classes"):
        ranking.create("vit", num_classes=3, rngs=nnx.Rngs(0))


def test_every_linear_layer_starts_xavier_uniform():
    model = ranking.create("vit", img_size=32, patch_size=4, embed_dim=96, depth=1, num_heads=3, rngs=nnx.Rngs(0))
    inputs, outputs = model.head.kernel.shape
    assert np.std(model.head.kernel[...]) == pytest.approx((2 / (inputs + outputs)) ** 0.5, rel=0.05)


@pytest.mark.slow
def test_a_ranker_that_scores_each_patch_from_its_own_token():
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
    ranker = ranking.create("vit", **sizes, per_patch=True, rngs=nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    scores = ranker.scores(images)
    assert scores.shape == (2, ranker.num_classes) == (2, 16) and ranker.head.kernel.shape == (16, 1)
    chex.assert_trees_all_close(ranker(images)[0], scores)
    everything = jnp.tile(jnp.arange(16)[::-1], (2, 1))
    chex.assert_trees_all_close(ranker.scores(images, everything), scores, atol=1e-5)
    seen = ranker.scores(images, jnp.array([[3, 1], [5, 0]]))
    assert np.isfinite(np.asarray(seen)).nonzero()[1].tolist() == [1, 3, 0, 5]
    half = reduction.apply(ranker, reduction.Plan("topk", keep_rate=0.5, reduction_loc=(0,)))
    assert np.isfinite(np.asarray(half(images)[0])).sum(1).tolist() == [8, 8]
    assert flops.of_model(ranker).head == 16 * 16
