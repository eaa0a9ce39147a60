"""K-Medoids: keep the most central token of every cluster (Haurum et al., 2023, Sec. 3; Marin et al., 2023)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxprune import errors
from jaxprune.nn.tokens import take
from jaxprune.reduction.parts import clusters
from jaxprune.reduction.parts.base import Reducer
from jaxprune.reduction.parts.keep_rows import absent_rows, best, present, unchanged

MODES = ("reference", "textbook")


def seed(
    distance: clusters.Distances,
    shape: tuple[Any, ...],
    num_clusters: int,
    first: Int[Array, ""] | int,
    mode: str,
    absent: Bool[Array, "b n"] | None = None,
) -> Int[Array, "b k"]:
    """Initial centres without weights: farthest-point sampling from token `first`, or the first that is present.

    "reference" measures the distance to the farthest chosen token, "textbook" to the nearest.

    Args:
      shape: (b, n); b may be symbolic.
      absent: True for tokens that become centres only where no others are left.
    """
    join = jnp.maximum if mode == "reference" else jnp.minimum
    tokens, places = jnp.arange(shape[1])[None, :], jnp.arange(num_clusters)[None, :]

    def add(i, state):
        centres, far, free = state
        eligible = far if absent is None else jnp.where(absent, -1, far)
        centre = jnp.argmax(jnp.where(free, eligible, -2), axis=1).astype(jnp.int32)
        centres = jnp.where(places == i, centre[:, None], centres)
        return centres, join(far, distance.of(centre)), free & (tokens != centre[:, None])

    start = jnp.full((shape[0],), first, jnp.int32)
    if absent is not None:
        start = jnp.where(absent[:, first], jnp.argmin(absent, axis=1).astype(jnp.int32), start)
    centres = jnp.where(places == 0, start[:, None], 0).astype(jnp.int32)
    free = tokens != start[:, None]
    return jax.lax.fori_loop(1, num_clusters, add, (centres, distance.of(start), free))[0]


def kmedoids(
    x: Float[Array, "b n d"],
    num_clusters: int,
    weights: Float[Array, "b n"] | None = None,
    *,
    mode: str = "reference",
    iterations: int = 3,
    first: Int[Array, ""] | int = 0,
    absent: Bool[Array, "b n"] | None = None,
) -> tuple[Int[Array, "b k"], Int[Array, "b n"]]:
    """Clusters the tokens of each image around medoids; without gradient.

    Args:
      weights: token weights; the heaviest tokens are the initial centres. None: equal weights, and the initial centres
        are spread out (`seed`), starting from token `first`.
      mode: the definition of a cluster's centre. "reference", as in the published code: the member j that minimises w_j
        · Σ_l D_jl over all tokens l. "textbook": the member that minimises Σ_l w_l D_jl over the tokens l of its
        cluster.
      absent: True for tokens that do not count, and become centres only where there are too few others.

    Returns:
      (centres, assign): the index of each cluster's centre token, and the cluster of each token.
    """
    distance = clusters.Distances(x)
    if weights is None:
        centres = seed(distance, x.shape[:2], num_clusters, first, mode, absent)
        weights = jnp.ones(x.shape[:2], jnp.float32)
    else:
        weights = jax.lax.stop_gradient(weights).astype(jnp.float32)
        centres = best(weights, num_clusters)
    if absent is not None:
        weights = jnp.where(absent, 0, weights)
    counted = lambda rows: rows if absent is None else jnp.where(absent[:, None, :], 0, rows)
    cost = weights * distance.by_rows(lambda rows: counted(rows).sum(2))
    for _ in range(iterations):
        assign = distance.nearest(centres)
        if mode == "textbook":
            within = functools.partial(_within_cluster, assign=assign, weights=weights)
            cost = distance.by_rows(within, assign)
        if absent is not None:
            cost = jnp.where(absent, jnp.finfo(cost.dtype).max, cost)
        centres = clusters.cheapest(cost, assign, num_clusters)
    return centres, distance.nearest(centres)


def _within_cluster(
    rows: Float[Array, "b m n"], of_row: Int[Array, "b m"], *, assign: Int[Array, "b n"], weights: Float[Array, "b n"]
) -> Float[Array, "b m"]:
    """The weighted sum of the distances of each row to the tokens of its own cluster."""
    same_cluster = of_row[:, :, None] == assign[:, None, :]
    return jnp.where(same_cluster, weights[:, None, :] * rows, 0).sum(2)


class KMedoids(Reducer):
    """Clusters the tokens, weighted by the attention they received in the block before, and keeps the centres.

    Args:
      mode: "reference" for the published cost, which makes strongly attended tokens less likely centres and ignores
        cluster membership, and the published seeding with equal weights; "textbook" for the usual definitions.
      equal_weights: ignore the attention.
      iterations: number of updates of assignment and centres.
      first: with equal weights, the token to start from; None draws one for the whole batch if there is a key
        (training), else takes token 0.
    """

    where = "before"
    drops = False
    needs = frozenset({"received"})

    def __init__(
        self,
        step,
        *,
        mode: str = "reference",
        equal_weights: bool = False,
        iterations: int = 3,
        first: int | None = None,
        rngs=None,
    ):
        super().__init__(step)
        if mode not in MODES:
            raise errors.UserError(f"mode {mode!r} of kmedoids is neither of {MODES}.{errors.nearest(mode, MODES)}")
        if iterations < 1:
            raise errors.UserError(f"iterations={iterations}: kmedoids needs at least 1.")
        if first is not None and not 0 <= first < step.tokens_in:
            raise errors.UserError(
                f"first={first} is not a token of block {step.layer}: use 0 to {step.tokens_in - 1}."
            )
        self.mode, self.equal_weights, self.iterations, self.first = mode, equal_weights, iterations, first

    def flops(self) -> int:
        """n²·d for the distances between the n incoming rows; assignment and centres need only comparisons and sums.

        In blocks (`nn.attention_kernels`) the distances are recomputed at each use, which is not counted.
        """
        return self.step.tokens_in**2 * self.step.embed_dim

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, tokens_in = self.step.num_prefix_tokens, self.step.tokens_in
        if self.step.num_keep >= tokens_in:
            return unchanged(tokens, prefix)
        first = self.first
        if first is None:
            first = 0 if key is None else jax.random.randint(key, (), 0, tokens_in)
        x = tokens.x[:, prefix:]
        weights = None if self.equal_weights else present(attended.received).sum(1)[:, prefix:]
        centres, assign = kmedoids(
            x,
            self.step.num_keep,
            weights,
            mode=self.mode,
            iterations=self.iterations,
            first=first,
            absent=absent_rows(tokens, self.step),
        )
        kept = take(tokens.x, centres, prefix)
        reduced, report = clusters.clustered(tokens, kept[:, prefix:], assign, centres, self.step)
        return reduced._replace(x=kept), report
