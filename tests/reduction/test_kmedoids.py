"""K-Medoids against the published implementation, and what its textbook form promises."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published_clusters import check_model, stage
from published_models import cases, config_of
from support import golden, golden_names, slow_but

from jaxprune import reduction
from jaxprune.errors import UserError
from jaxprune.nn import Attended, attention_kernels
from jaxprune.nn.tokens import all_present
from jaxprune.reduction.kmedoids import KMedoids, kmedoids
from jaxprune.reduction.parts.clusters import distances


@pytest.mark.parametrize("case", cases("kmedoids"))
def test_matches_the_published_model(case):
    check_model(case, "kmedoids", "kmedoids")


OPERATORS = golden_names("token_reduction/op_kmedoids_*")


@pytest.mark.parametrize("name", slow_but(OPERATORS[::3], OPERATORS))
def test_matches_the_published_operator(name):
    file = golden(name)
    config = config_of(file)
    x = jnp.asarray(file["x"])
    if "token_weight" in file:
        given = {"weights": jnp.asarray(file["token_weight"][:, :, 0])}
    else:
        given = {"first": int(file["initial_center"][0])}
    cluster = functools.partial(kmedoids, num_clusters=config["clusters"], iterations=config["iterations"])
    centres, assign = jax.jit(cluster)(x, **given)
    np.testing.assert_array_equal(centres, file["center_idx"])
    np.testing.assert_array_equal(assign, file["assignment"])
    rows = np.take_along_axis(file["x"], np.asarray(centres)[:, :, None], 1)
    np.testing.assert_array_equal(rows, file["centers"])


def test_textbook_finds_the_groups_and_their_medoids():
    means = 40.0 * np.eye(4, 6, dtype=np.float32)
    groups = np.repeat(np.arange(4), 5)
    x = means[groups] + np.random.default_rng(0).normal(size=(2, 20, 6)).astype(np.float32)
    cluster = functools.partial(kmedoids, num_clusters=4, mode="textbook", first=7)
    centres, assign = jax.jit(cluster)(jnp.asarray(x))
    for image, picked, mine in zip(x, np.asarray(centres), np.asarray(assign), strict=True):
        for cluster, centre in enumerate(picked):
            members = np.flatnonzero(groups == groups[centre])
            np.testing.assert_array_equal(np.flatnonzero(mine == cluster), members)
            apart = np.linalg.norm(image[members, None] - image[None, members], axis=-1).sum(0)
            assert centre == members[apart.argmin()]


def test_distances_are_exact_for_equal_tokens_and_for_a_large_common_part():
    x = np.random.default_rng(0).normal(size=(2, 40, 16)).astype(np.float32)
    x[:, 7] = x[:, 3]
    found = np.asarray(distances(jnp.asarray(x + 1000)))
    wide = np.float64(x + np.float32(1000))
    chex.assert_trees_all_close(found, np.linalg.norm(wide[:, :, None] - wide[:, None], axis=-1), atol=2e-3)
    assert (found[:, 7, 3] == 0).all() and (np.diagonal(found, axis1=1, axis2=2) == 0).all()


@pytest.mark.slow
def test_equal_weights_draws_the_first_centre_where_there_is_a_key(rng_key):
    x = jax.random.normal(rng_key, (2, 9, 4))
    tokens, attended = all_present(x, 0), Attended()
    drawing = KMedoids(stage(9, 3, 4), equal_weights=True)
    draw = jax.jit(jax.vmap(lambda key: drawing(tokens, attended, key=key)[1].kept))
    assert len({tuple(ids.ravel()) for ids in np.asarray(draw(jax.random.split(rng_key, 4)))}) > 1
    given = KMedoids(stage(9, 3, 4), equal_weights=True, first=0)(tokens, attended, key=rng_key)
    chex.assert_trees_all_equal(given, drawing(tokens, attended))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reference", "textbook"])
@pytest.mark.parametrize("weighted", [True, False])
def test_in_blocks_the_choices_are_the_same_and_no_matrix_is_held(mode, weighted, rng_key):
    n, blocks = 300, functools.partial(attention_kernels.implementation, "blocked")
    x = jax.random.normal(rng_key, (2, n, 16))
    weights = jax.random.uniform(rng_key, (2, n)) if weighted else None
    absent = jnp.arange(n)[None, :] % 7 == jnp.zeros((2, 1))
    cluster = lambda x: kmedoids(x, 40, weights, mode=mode, first=5, absent=absent)
    whole = jax.jit(cluster)(x)
    with blocks():
        program = jax.jit(lambda x: cluster(x)).lower(x).compile()
    np.testing.assert_array_equal(program(x)[0], whole[0])
    np.testing.assert_array_equal(program(x)[1], whole[1])
    assert "300,300" not in program.as_text() and "300,300" in jax.jit(cluster).lower(x).compile().as_text()
    assert program.memory_analysis().temp_size_in_bytes < 2 * n * n * 4  # one matrix of both images


@pytest.mark.parametrize(
    "options, says",
    [
        ({"mode": "textbok"}, "Did you mean 'textbook'"),
        ({"iterations": 0}, "at least 1"),
        ({"first": 9, "equal_weights": True}, "use 0 to 8"),
    ],
)
def test_refuses_options_without_sense(options, says):
    with pytest.raises(UserError, match=says):
        KMedoids(stage(9, 3, 4), **options)


def test_refuses_block_zero():
    with pytest.raises(UserError, match="block 0"):
        reduction.Plan("kmedoids", reduction_loc=(0, 3))
