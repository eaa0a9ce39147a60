"""ATC: merge tokens by agglomerative clustering, the closest two clusters first (Haurum et al., 2024)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import unknown
from jaxprune.reduction.parts import clusters
from jaxprune.reduction.parts.base import Reducer, Step
from jaxprune.reduction.parts.cosines import products, unit
from jaxprune.reduction.parts.keep_rows import absent_rows, present, unchanged

LINKAGES = ("average", "complete", "single")


def agglomerate(
    distance: Float[Array, "b n n"],
    num_clusters: int,
    linkage: str = "average",
    *,
    absent: Bool[Array, "b n"] | None = None,
) -> tuple[Int[Array, "b n"], Float[Array, "b _"]]:
    """Merges the two closest clusters of each image, starting from single tokens, until `num_clusters` are left.

    Of equal distances, the pair with the first token merges first.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[0.0, 5.0, 1.0, 7.0]])
    >>> labels, heights = agglomerate(abs(x[:, :, None] - x[:, None, :]), 2)
    >>> labels.tolist(), heights.tolist()
    ([[0, 1, 0, 1]], [[1.0, 2.0]])

    Args:
      distance: distances between the tokens; only those above the diagonal are read.
      linkage: the distance of two clusters, from those of their tokens: the "average", the largest ("complete"), or the
        smallest ("single").
      absent: True for tokens that join any cluster before others merge, without changing its distances.

    Returns:
      (labels, heights): the cluster of each token, numbered by its first token, and the distance of each merge.
    """
    merge_one = lambda distance, absent: _agglomerate(distance, absent, num_clusters, linkage)
    if absent is None:
        absent = jnp.zeros(distance.shape[:2], bool)
    return jax.vmap(merge_one)(mirrored(jax.lax.stop_gradient(distance).astype(jnp.float32)), absent)


def mirrored(distance: Float[Array, "b n n"]) -> Float[Array, "b n n"]:
    """Distances as they are above the diagonal, so that both directions are equal to the bit; 0 on the diagonal."""
    places = jnp.arange(distance.shape[1])
    above = (places[:, None] < places[None, :])[None]
    below = (places[:, None] > places[None, :])[None]
    return jnp.where(above, distance, jnp.where(below, distance.swapaxes(1, 2), 0))


def _agglomerate(distance: Array, absent: Array, num_clusters: int, linkage: str) -> tuple[Array, Array]:
    """See `agglomerate`, for one image.

    The smallest distances within blocks of rows are kept beside the matrix: a merge changes two rows and two columns,
    so only their blocks are looked at again, and not all distances.
    """
    n = distance.shape[0]
    width = max(math.isqrt(n // 2), 1)
    blocks = -(-n // width)
    padding = blocks * width - n
    places, numbers = (jnp.arange(count, dtype=jnp.int32) for count in (n + padding, blocks))
    distance = jnp.where(absent[:, None] | absent[None, :], -1.0, distance)
    distance = jnp.where(places[:n, None] == places[None, :n], jnp.inf, distance)
    distance = jnp.pad(distance, ((0, padding), (0, padding)), constant_values=jnp.inf)
    unreachable = jnp.full_like(distance[0], jnp.inf)
    in_blocks = lambda values: values.reshape(blocks, width, -1)

    def merge_closest(step, state):
        distance, smallest, counts, labels, heights = state
        nearest = smallest.min(0)
        height = nearest.min()
        first = _first_of(nearest, height)
        second = _first_of(distance[first], height)
        is_first, is_second = places == first, places == second
        joined = _joined(distance[first], distance[second], counts[first], counts[second], linkage)
        joined = jnp.where(is_first | is_second, jnp.inf, joined)
        # A cluster is in the row of its first token; the row of the one that joins it is out of reach.
        for place, row in ((first, joined), (second, unreachable)):
            distance = distance.at[place].set(row).at[:, place].set(row)
        smallest = jnp.where(is_first[None, :], in_blocks(joined).min(1), smallest)
        smallest = jnp.where(is_second[None, :], jnp.inf, smallest)
        for place in (first, second):
            block = jax.lax.div(place, jnp.int32(width))  # both are positive; ONNX has no rounding division
            smallest = jnp.where(numbers[:, None] == block, in_blocks(distance)[block].min(0)[None, :], smallest)
        counts = jnp.where(is_first, counts + counts[second], counts)
        heights = jnp.where(jnp.arange(heights.shape[0]) == step, height, heights)
        return distance, smallest, counts, jnp.where(labels == second, first, labels), heights

    counts = jnp.pad(jnp.where(absent, 0.0, 1.0), (0, padding))
    state = distance, in_blocks(distance).min(1), counts, places, jnp.zeros((n - num_clusters,), jnp.float32)
    _, _, _, labels, heights = jax.lax.fori_loop(0, n - num_clusters, merge_closest, state)
    labels = labels[:n]
    order = jnp.cumsum(labels == places[:n], dtype=jnp.int32) - 1
    return order[labels], heights


def _first_of(values: Float[Array, "n"], value: Float[Array, ""]) -> Int[Array, ""]:
    """The first place of a value that occurs."""
    places = jnp.arange(values.shape[0], dtype=jnp.int32)
    return jnp.where(values == value, places, places.size - 1).min()


def _joined(first: Array, second: Array, count: Array, count_of_second: Array, linkage: str) -> Array:
    """The distances of two clusters that merge to all others (Lance and Williams, 1967)."""
    if linkage == "average":
        total = jnp.maximum(count + count_of_second, 1.0)
        joined = (count * first + count_of_second * second) / total
    else:
        joined = jnp.maximum(first, second) if linkage == "complete" else jnp.minimum(first, second)
    # Absent tokens count for nothing.
    return jnp.where(count_of_second == 0, first, jnp.where(count == 0, second, joined))


class ATC(Reducer):
    """Clusters the keys by their cosines, and merges each cluster into its mean, by default weighted by size.

    The keys are averaged over the heads. Any number of rows can be left, down to one. Outgoing rows are in the order of
    their first row; `kept` lists the row of each cluster that is closest to all its rows.

    >>> from jaxprune.reduction import Plan
    >>> Plan("atc", keep_rate=0.25, reduction_loc=(6,), linkage="complete").text
    'atc@6:keep_rate=0.25,linkage=complete'

    Args:
      linkage: the distance of two clusters, see `agglomerate`.
      proportional: whether later blocks weigh keys by size.
      equal_weights: whether means count each row once, whatever it holds; by default only without `proportional`, as in
        the published classifiers, which then forget the sizes, unlike the published self-supervised networks.

    Raises:
      UserError: there is no such linkage.
    """

    where = "after"
    drops = False
    row_by_row = True
    needs = frozenset({"keys"})

    def __init__(
        self,
        step: Step,
        *,
        linkage: str = "average",
        proportional: bool = True,
        equal_weights: bool | None = None,
        rngs: Any = None,
    ):
        super().__init__(step)
        if linkage not in LINKAGES:
            raise unknown("linkage", linkage, LINKAGES)
        self.linkage, self.proportional = linkage, proportional
        self.equal_weights = not proportional if equal_weights is None else equal_weights

    def flops(self) -> int:
        """n²·e for the cosines of n keys of width e, 2·n per merge for averages of distances, k·n·d for k means."""
        n, k, d = self.step.tokens_in, self.step.num_keep, self.step.embed_dim
        averages = 2 * n * (n - k) if self.linkage == "average" else 0
        return n * n * (d // self.step.num_heads) + averages + k * n * d

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, num_keep = self.step.num_prefix_tokens, self.step.num_keep
        if num_keep >= self.step.tokens_in:
            return unchanged(tokens, prefix)
        keys = unit(present(attended.keys).astype(jnp.float32).mean(1)[:, prefix:])
        distance = mirrored(1 - products(keys, keys))
        absent = absent_rows(tokens, self.step)
        labels, _ = agglomerate(distance, num_keep, self.linkage, absent=absent)
        centres = clusters.medoids(distance, labels, num_keep, absent=absent)
        sizes = tokens.size[:, prefix:]
        weights = jnp.where(sizes > 0, 1.0, 0.0) if self.equal_weights else sizes
        rows = clusters.weighted_means(tokens.x[:, prefix:], weights, labels, num_keep)
        return clusters.clustered(tokens, rows, labels, centres, self.step)
