"""Agglomerative clustering that looks at all distances before every merge: what the fast form has to equal."""

import jax
import jax.numpy as jnp

from jaxprune.reduction.atc import _first_of, _joined, mirrored


def agglomerate(distance, num_clusters, linkage, absent):
    """See `reduction.atc.agglomerate`."""
    return jax.vmap(lambda distance, absent: _one(distance, absent, num_clusters, linkage))(mirrored(distance), absent)


def _one(distance, absent, num_clusters, linkage):
    n = distance.shape[0]
    places = jnp.arange(n, dtype=jnp.int32)
    distance = jnp.where(absent[:, None] | absent[None, :], -1.0, distance)
    distance = jnp.where(places[:, None] == places[None, :], jnp.inf, distance)

    def merge_closest(step, state):
        distance, counts, labels, heights = state
        nearest = distance.min(0)
        first = _first_of(nearest, nearest.min())
        height = nearest[first]
        second = _first_of(distance[first], height)
        is_first, is_second = places == first, places == second
        joined = _joined(distance[first], distance[second], counts[first], counts[second], linkage)
        joined = jnp.where(is_first | is_second, jnp.inf, joined)
        distance = jnp.where(is_first[:, None], joined[None, :], distance)
        distance = jnp.where(is_first[None, :], joined[:, None], distance)
        distance = jnp.where(is_second[:, None] | is_second[None, :], jnp.inf, distance)
        counts = jnp.where(is_first, counts + counts[second], counts)
        heights = jnp.where(jnp.arange(heights.shape[0]) == step, height, heights)
        return distance, counts, jnp.where(labels == second, first, labels), heights

    counts = jnp.where(absent, 0.0, 1.0)
    state = distance, counts, places, jnp.zeros((n - num_clusters,), jnp.float32)
    _, _, labels, heights = jax.lax.fori_loop(0, n - num_clusters, merge_closest, state)
    order = jnp.cumsum(labels == places, dtype=jnp.int32) - 1
    return order[labels], heights
