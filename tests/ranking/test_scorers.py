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
    np.testing.assert_array_equal(np.sort(chosen[:, by_score:]), np.sort(FILE["selected"][:, by_score:]))


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
