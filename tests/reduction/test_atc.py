"""ATC against the published implementation, and its clustering against the definition."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import whole_matrix
from newer_networks import run
from published_models import CLOSE, PROBABILITY, config_of, stage
from support import golden, golden_names, quick_compile, slow_but

from jaxprune.errors import UserError
from jaxprune.nn import Attended
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import Plan
from jaxprune.reduction.atc import ATC, LINKAGES, agglomerate
from jaxprune.reduction.parts.cosines import products, unit


def compiled(distance, num_clusters, linkage, **options):
    cluster = functools.partial(agglomerate, num_clusters=num_clusters, linkage=linkage)
    return jax.jit(cluster, compiler_options=quick_compile())(distance, **options)


def published_places(row_map, published, prefix):
    """The published place of each of our rows (with the prefix), if both labels are of the same clusters.

    Args:
      row_map: our row of each incoming row, without the prefix.
      published: the published label of each of our incoming rows, with the prefix.
    """
    labels = np.concatenate([published[:, :prefix], prefix + np.asarray(row_map)], axis=1)
    places = np.zeros((len(labels), labels.max() + 1), int)
    np.put_along_axis(places, labels, published, axis=1)
    np.testing.assert_array_equal(np.take_along_axis(places, labels, axis=1), published)
    np.testing.assert_array_equal(np.sort(places, axis=1), np.broadcast_to(np.arange(places.shape[1]), places.shape))
    return places


OPERATORS = golden_names("newer/atc_op_*")


@pytest.mark.parametrize("name", slow_but(OPERATORS[::3], OPERATORS))
def test_matches_the_published_operator(name):
    file = golden(name)
    config = config_of(file)
    prefix, k = int(config["class_token"]), config["num_clusters"]
    rows = config["N"] - prefix
    keys = unit(jnp.asarray(file["metric"])[:, prefix:])
    _, heights = compiled(1 - products(keys, keys), 1, config["linkage"])
    chex.assert_trees_all_close(heights, file["heights"], **PROBABILITY)

    reducer = ATC(stage(rows, k, num_prefix_tokens=prefix), linkage=config["linkage"])
    tokens = all_present(jnp.asarray(file["x"]), prefix)._replace(size=jnp.asarray(file["size"][:, :, 0]))
    attended = Attended(keys=jnp.asarray(file["metric"])[:, None])
    reduced, report = jax.tree.map(np.asarray, jax.jit(reducer)(tokens, attended))
    np.testing.assert_array_equal(prefix + report.row_map, file["labels_by_first_member"][:, prefix:])
    places = published_places(report.row_map, file["labels"], prefix)
    chex.assert_trees_all_close(reduced.x, np.take_along_axis(file["merged_x"], places[:, :, None], 1), **CLOSE)
    chex.assert_trees_all_close(reduced.size, np.take_along_axis(file["merged_size"][:, :, 0], places, 1), **CLOSE)


NETWORKS = golden_names("newer/atc_net_*")


@pytest.mark.parametrize("name", slow_but(NETWORKS[:1], NETWORKS))
def test_matches_the_published_network(name):
    file = golden(name)
    config = config_of(file)
    blocks = config["reduction_loc"]
    options = {"linkage": config["linkage"], "proportional": config["proportional"]}
    plan = Plan("atc", num_keep=tuple(config["counts"]), reduction_loc=tuple(blocks), **options)
    by_rate = Plan("atc", keep_rate=config["ratio"], reduction_loc=tuple(blocks), **options)
    assert by_rate.counts((config["img_size"] // config["patch_size"]) ** 2) == tuple(config["counts"])
    logits, aux = run(file, plan)
    chex.assert_trees_all_close(logits, file["logits"], **CLOSE)
    places, sizes = None, None  # of our rows, in the published order and as the published code counts them
    for block in range(config["depth"]):
        if block in blocks:
            row_map, published = aux.steps[blocks.index(block)].row_map, file[f"labels_{block}"]
            published = published if places is None else np.take_along_axis(published, places, axis=1)
            places = published_places(row_map, published, prefix=1)
            if sizes is None or not config["proportional"]:
                sizes = np.ones(published.shape)
            sizes = np.stack([np.bincount(ids, image) for ids, image in zip(1 + row_map, sizes[:, 1:], strict=True)])
            sizes[:, 0] = 1
            np.testing.assert_array_equal(sizes, np.take_along_axis(file[f"size_{block}"], places, axis=1))
        features = file[f"features_{block}"]
        features = features if places is None else np.take_along_axis(features, places[:, :, None], axis=1)
        chex.assert_trees_all_close(aux.features[block], features, **CLOSE)


def by_definition(distance, num_clusters, linkage):
    """The closest two of the remaining clusters merge, their distance taken anew from those of all their tokens."""
    of = {"average": np.mean, "complete": np.max, "single": np.min}[linkage]
    clusters = [[token] for token in range(len(distance))]
    while len(clusters) > num_clusters:
        pairs = [(i, j) for j in range(len(clusters)) for i in range(j)]
        i, j = min(pairs, key=lambda pair: of(distance[np.ix_(clusters[pair[0]], clusters[pair[1]])]))
        clusters[i] += clusters.pop(j)
    labels = np.zeros(len(distance), int)
    for number, cluster in enumerate(sorted(map(sorted, clusters))):
        labels[cluster] = number
    return labels


@pytest.mark.parametrize("linkage", LINKAGES)
def test_clusters_are_those_of_the_definition(linkage):
    points = np.random.default_rng(0).normal(size=(3, 21, 4))
    distance = np.linalg.norm(points[:, :, None] - points[:, None], axis=-1)
    for num_clusters in (1, 5, 20):
        labels, heights = compiled(jnp.asarray(distance, jnp.float32), num_clusters, linkage)
        assert (np.diff(np.asarray(heights)) >= 0).all() and heights.shape == (3, 21 - num_clusters)
        for image in range(3):
            np.testing.assert_array_equal(labels[image], by_definition(distance[image], num_clusters, linkage))


@pytest.mark.slow
@pytest.mark.parametrize("linkage", slow_but(["average"], LINKAGES))
def test_partitions_equal_those_of_the_whole_matrix(linkage):
    """To the bit, over random inputs; also with few different distances, so that most merges are ties."""
    rng = np.random.default_rng(0)
    for n, num_clusters in ((7, 1), (50, 17)):
        options = {"num_clusters": num_clusters, "linkage": linkage}
        both = lambda distance, absent, options=options: (
            agglomerate(distance, absent=absent, **options),
            whole_matrix.agglomerate(distance, absent=absent, **options),
        )
        program = jax.jit(both, compiler_options=quick_compile())
        for levels in (None, 2, 5, 20):
            x = rng.normal(size=(64, n, 5)).astype(np.float32)
            x[:, n // 2 :: 3] = x[:, :1]  # equal tokens
            keys = unit(jnp.asarray(x))
            distance = np.asarray(1 - products(keys, keys))
            distance = distance if levels is None else np.round(distance * levels) / levels
            ours, expected = program(jnp.asarray(distance, jnp.float32), jnp.asarray(rng.random((64, n)) < 0.15))
            chex.assert_trees_all_equal(ours, expected)


@pytest.mark.parametrize("linkage", LINKAGES)
def test_absent_tokens_change_no_cluster(linkage):
    points = np.random.default_rng(1).normal(size=(2, 18, 4))
    absent = np.zeros((2, 18), bool)
    absent[:, [0, 3, 4, 17]] = True
    distance = jnp.asarray(np.linalg.norm(points[:, :, None] - points[:, None], axis=-1), jnp.float32)
    labels, _ = compiled(distance, 6, linkage, absent=jnp.asarray(absent))
    alone, _ = compiled(distance[:, ~absent[0]][:, :, ~absent[0]], 6, linkage)
    alike = lambda labels: labels[:, :, None] == labels[:, None, :]
    np.testing.assert_array_equal(alike(np.asarray(labels)[:, ~absent[0]]), alike(np.asarray(alone)))
    assert set(np.asarray(labels).ravel()) == set(range(6))


def test_equal_tokens_give_as_many_clusters_as_asked():
    for linkage in LINKAGES:
        labels, _ = compiled(jnp.zeros((1, 9, 9)), 4, linkage)
        assert len(set(np.asarray(labels[0]))) == 4


def test_refuses_options_without_sense():
    with pytest.raises(UserError, match="Did you mean 'average'"):
        ATC(stage(9, 3), linkage="averag")
