"""The scorers "ltrp" and "ltrp_cluster"."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, quick_compile

from jaxprune import models, ranking, scoring
from jaxprune.errors import UserError
from jaxprune.reduction.dpc_knn import dpc_knn
from jaxprune.scoring.ltrp_cluster import diverse

FILE = golden("ltrp_papr/diverse_select")
SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}


def compiled(function):
    return jax.jit(function, compiler_options=quick_compile())


def test_diverse_choice_matches():
    given = [jnp.asarray(FILE[name]) for name in ("scores", "patch_tokens", "noise")]
    keep, ratio = int(FILE["keep"]), float(FILE["ratio"])
    chosen = np.asarray(compiled(lambda *given: diverse(*given, keep, ratio))(*given))
    by_score = FILE["selected_by_score"].shape[1]
    np.testing.assert_array_equal(chosen[:, :by_score], FILE["selected_by_score"][:, ::-1])
    # Which of several clusters of one size contribute is arbitrary: what is compared are the sizes and the rule.
    for image, cluster in enumerate(FILE["cluster_id"]):
        ours, theirs = chosen[image, by_score:], FILE["selected"][image, by_score:]
        sizes = np.bincount(cluster)
        np.testing.assert_array_equal(sizes[cluster[ours]], np.sort(sizes[cluster[theirs]])[::-1])
        # All clusters above the smallest size that contributes are the same, and so are their patches.
        sure = sizes > sizes[cluster[ours]].min()
        assert {p for p in ours if sure[cluster[p]]} == {p for p in theirs if sure[cluster[p]]}


def test_a_cluster_is_represented_by_any_of_its_patches():
    """Where the scores have selected the representative, the cluster contributes none of its others."""
    rng = np.random.default_rng(0)
    scores, noise, pixels = rng.normal(size=(40, 16)), rng.uniform(size=(40, 16)), rng.normal(size=(40, 16, 12))
    scores, noise, pixels = (jnp.asarray(values, jnp.float32) for values in (scores, noise, pixels))
    chosen, assign = compiled(lambda *drawn: (diverse(*drawn, 8, 0.5), dpc_knn(drawn[1], 8)[1]))(scores, pixels, noise)
    left_out = 0
    for rows, drawn, cluster in zip(np.asarray(chosen), np.asarray(noise), np.asarray(assign), strict=True):
        members = [np.flatnonzero(cluster == number) for number in range(8)]
        representatives = {own[drawn[own].argmax()]: len(own) for own in members}
        allowed = {patch: size for patch, size in representatives.items() if patch not in rows[:4]}
        left_out += len(representatives) - len(allowed)
        assert set(rows[4:]) <= set(allowed) and len(set(rows)) == 8
        assert [allowed[patch] for patch in rows[4:]] == sorted(allowed.values(), reverse=True)[:4]
    assert left_out > 20


def test_a_ranker_scores_whole_images(rng_key):
    ranker = ranking.create("vit", **SIZES, rngs=nnx.Rngs(0))
    images = jax.random.normal(rng_key, (2, 16, 16, 3))
    scorer = scoring.create("ltrp", proposal=ranker)
    found, expected = compiled(lambda images: (scorer(images), ranker.scores(images)))(images)
    chex.assert_trees_all_close(found, expected, rtol=1e-6)
    assert scorer.select(found, 5).shape == (2, 5)


def test_diversity_keeps_the_best_and_no_patch_twice(rng_key):
    ranker = ranking.create("vit", **SIZES, rngs=nnx.Rngs(0))
    images = jax.random.normal(rng_key, (2, 16, 16, 3))
    scorer = scoring.create("ltrp_cluster", proposal=ranker, num_keep=8, ratio=0.5)
    score = compiled(lambda images, key: (ranker.scores(images), scorer(images), scorer(images, key=key)))
    plain, *founds = score(images, rng_key)
    plain = np.argsort(-np.asarray(plain), axis=1)
    for found in founds:
        chosen = np.asarray(scorer.select(found, 8))
        np.testing.assert_array_equal(chosen[:, :4], plain[:, :4])
        assert all(len(set(row)) == 8 for row in chosen.tolist())
        np.testing.assert_array_equal((np.asarray(found) > 1).sum(1), [8, 8])


def test_networks_that_do_not_rank_are_refused():
    classifier = models.create("vit", **SIZES, num_classes=7, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="each of the 16 patches, but got a VisionTransformer with 7 outputs"):
        scoring.create("ltrp", proposal=classifier)
