"""Shared by the methods that merge tokens: distances, assignment to centres, and bookkeeping of merged rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn import attention_kernels
from jaxprune.nn.tokens import Tokens
from jaxprune.ops.blocks import by_rows
from jaxprune.reduction.parts.base import Step, StepReport
from jaxprune.reduction.parts.merged_position import merged_position
from jaxprune.reduction.parts.row_maps import compose


def distances(x: Float[Array, "b n d"]) -> Float[Array, "b n n"]:
    """Euclidean distances between the tokens of each image, in float32 and without gradient; 0 on the diagonal."""
    x = _centred(x)
    gram = _products(x, x)
    norms = jnp.diagonal(gram, axis1=1, axis2=2)
    return _apart(norms, norms, gram)


class Distances:
    """The `distances` between the tokens of each image, in blocks of rows where `nn.attention_kernels` asks for it.

    In blocks, each use recomputes the products.

    Args:
      scale: divisor of the distances.
    """

    def __init__(self, x: Float[Array, "b n d"], scale: float = 1.0):
        self._size, self._scale = attention_kernels.row_block(), scale
        self._whole = distances(x) / scale if self._size is None else None
        if self._whole is None:
            self._x = _centred(x)
            ids = jnp.broadcast_to(jnp.arange(x.shape[1], dtype=jnp.int32)[None, :], x.shape[:2])
            # Products of the same shape as all others, so that equal tokens give bitwise equal results.
            norms_of = lambda x, ids: jnp.take_along_axis(_products(x, self._x), ids[:, :, None], axis=2)[:, :, 0]
            self._norms = by_rows(norms_of, self._x, ids, size=self._size)

    def by_rows(self, f: Callable[..., Any], *rows: Array) -> Any:
        """Returns `f(distances, *rows)`, computed in blocks of rows; see `ops.blocks.by_rows`."""
        if self._whole is not None:
            return f(self._whole, *rows)
        of_rows = lambda x, norms, *rows: f(self._between(x, norms, self._x, self._norms), *rows)
        return by_rows(of_rows, self._x, self._norms, *rows, size=self._size)

    def nearest(self, centres: Int[Array, "b k"]) -> Int[Array, "b n"]:
        """The cluster of every token, as `nearest` does."""
        if self._whole is not None:
            return nearest(self._whole, centres)
        x, norms = jax.vmap(lambda x, norms, ids: (x[ids], norms[ids]))(self._x, self._norms, centres)
        of_rows = lambda rows, row_norms: first_min(self._between(rows, row_norms, x, norms), axis=2)
        return by_rows(of_rows, self._x, self._norms, size=self._size)

    def of(self, tokens: Int[Array, "b"]) -> Float[Array, "b n"]:
        """The distances of one token of each image to all."""
        if self._whole is not None:
            return jax.vmap(lambda rows, token: rows[token])(self._whole, tokens)
        x, norms = jax.vmap(lambda x, norms, token: (x[token], norms[token]))(self._x, self._norms, tokens)
        return self._between(x[:, None], norms[:, None], self._x, self._norms)[:, 0]

    def _between(self, x: Array, x_norms: Array, y: Array, y_norms: Array) -> Float[Array, "b m n"]:
        return _apart(x_norms, y_norms, _products(x, y)) / self._scale


def _centred(x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
    # |a|² + |b|² - 2ab is one matrix product, but loses precision to the tokens' common mean: subtract that first.
    x = jax.lax.stop_gradient(x).astype(jnp.float32)
    return x - x.mean(1, keepdims=True)


def _products(x: Float[Array, "b m d"], y: Float[Array, "b n d"]) -> Float[Array, "b m n"]:
    return jax.lax.dot_general(x, y, (((2,), (2,)), ((0,), (0,))), precision=jax.lax.Precision.HIGHEST)


def _apart(x: Float[Array, "b m"], y: Float[Array, "b n"], products: Float[Array, "b m n"]) -> Float[Array, "b m n"]:
    """Distances with squared norms from the same products, so that equal tokens are at exactly the same distances."""
    return jnp.sqrt(jnp.maximum(x[:, :, None] + y[:, None, :] - 2 * products, 0))


def first_min(values: Float[Array, "b m n"], axis: int) -> Int[Array, "b _"]:
    """Index of the smallest value along `axis` (1 or 2); ties go to the first.

    Two plain minima: they are vectorised on CPU, `argmin` is not.
    """
    last = values.shape[axis] - 1
    places = jax.lax.broadcasted_iota(jnp.int32, values.shape, axis)
    return jnp.where(values == values.min(axis, keepdims=True), places, last).min(axis)


def nearest(distance: Float[Array, "b n n"], centres: Int[Array, "b k"]) -> Int[Array, "b n"]:
    """The cluster of every token: the nearest of the tokens `centres`; ties go to the first."""
    return first_min(jax.vmap(lambda d, c: d[c])(distance, centres), axis=1)


def members(assign: Int[Array, "b n"], num_clusters: int) -> Array:
    """True where a token (last axis) belongs to a cluster (middle axis)."""
    return assign[:, None, :] == jnp.arange(num_clusters, dtype=assign.dtype)[None, :, None]


def cheapest(cost: Float[Array, "b n"], assign: Int[Array, "b n"], num_clusters: int) -> Int[Array, "b k"]:
    """The token of smallest cost in each cluster; ties go to the first, and an empty cluster gets token 0."""

    def one(cost, assign):
        least = lambda values: jax.ops.segment_min(values, assign, num_clusters)
        places = jnp.arange(cost.shape[0], dtype=jnp.int32)
        token = least(jnp.where(cost == least(cost)[assign], places, places.size))
        return jnp.where(token < places.size, token, 0)

    return jax.vmap(one)(cost, assign)


def medoids(
    distance: Float[Array, "b n n"],
    assign: Int[Array, "b n"],
    num_clusters: int,
    *,
    absent: Bool[Array, "b n"] | None = None,
) -> Int[Array, "b k"]:
    """The token of each cluster with the smallest sum of distances to its tokens; ties go to the first.

    Args:
      absent: True for tokens that count only where a cluster has no others.
    """
    same_cluster = assign[:, :, None] == assign[:, None, :]
    if absent is not None:
        same_cluster = same_cluster & ~absent[:, None, :]
    cost = jnp.where(same_cluster, distance, 0).sum(2)
    if absent is not None:
        cost = jnp.where(absent, jnp.finfo(cost.dtype).max, cost)
    return cheapest(cost, assign, num_clusters)


def weighted_means(
    x: Float[Array, "b n d"], weights: Float[Array, "b n"], assign: Int[Array, "b n"], num_clusters: int
) -> Float[Array, "b k d"]:
    """The weighted mean of the tokens of each cluster, in float32; zero where all weights are."""
    wide = x.astype(jnp.float32)

    def mean(inside):
        share = jnp.where(inside, weights[:, None, :], 0)
        share = share / jnp.maximum(share.sum(2, keepdims=True), jnp.finfo(share.dtype).tiny)
        return jax.lax.dot_general(share, wide, (((2,), (1,)), ((0,), (0,))), precision=jax.lax.Precision.HIGHEST)

    return by_cluster(mean, assign, num_clusters)


def by_cluster(f: Callable[..., Any], assign: Int[Array, "b n"], num_clusters: int, *rows: Array) -> Any:
    """Returns `f(members, *rows)`, whose results have a row per cluster; in blocks where `nn.attention_kernels` asks.

    Args:
      rows: further arguments with a row per cluster.
    """
    size = attention_kernels.row_block()
    if size is None:
        return f(members(assign, num_clusters), *rows)
    ids = jnp.broadcast_to(jnp.arange(num_clusters, dtype=assign.dtype)[None, :], (assign.shape[0], num_clusters))
    of_ids = lambda ids, *rows: f(assign[:, None, :] == ids[:, :, None], *rows)
    return by_rows(of_ids, ids, *rows, size=size)


def project(x: Float[Array, "b n d"], directions: Float[Array, "k d"]) -> Float[Array, "b k n"]:
    """Dot product of every direction with every token, in float32."""
    b, n, d = x.shape
    # Flattened, as in `nn.Linear`: one plain product, forward and backward.
    products = x.reshape(b * n, d) @ directions.T.astype(x.dtype)
    return products.reshape(b, n, -1).swapaxes(1, 2).astype(jnp.float32)


def needed(rngs: nnx.Rngs | None, method: str) -> nnx.Rngs:
    """Returns `rngs`, or raises: a method with parameters needs them."""
    if rngs is None:
        raise UserError(f"{method} has parameters to initialise: give rngs=nnx.Rngs(0) to reduction.apply.")
    return rngs


def clustered(
    tokens: Tokens,
    rows: Float[Array, "b k d"],
    row_map: Int[Array, "b n"],
    centres: Int[Array, "b k"],
    step: Step,
) -> tuple[Tokens, StepReport]:
    """Replaces the clusters of `row_map` with `rows`; a row's size is the sum over its cluster."""
    num_clusters, sizes = rows.shape[1], tokens.size[:, step.num_prefix_tokens :]
    add_up = jax.vmap(lambda values, rows: jax.ops.segment_sum(values, rows, num_clusters))
    place = lambda inside, centres: merged_position(tokens, jnp.where(inside, sizes[:, None, :], 0), centres, step)
    position = by_cluster(place, row_map, num_clusters, centres)
    reduced = behind_prefix(tokens, rows, add_up(sizes, row_map), position, row_map, step)
    return reduced, StepReport(row_map=row_map, kept=centres)


def mixed(
    tokens: Tokens, rows: Float[Array, "b k d"], weights: Float[Array, "b k n"], step: Step
) -> tuple[Tokens, StepReport]:
    """Replaces tokens with `rows`, which were mixed from them with `weights`.

    A patch is assigned to the row in which its token has the largest weight. Sizes do not follow that assignment, by
    which some rows would be absent: each token's size is split over the rows in proportion to its weights, which
    preserves the sum.
    """
    shares = weights / jnp.maximum(weights.sum(1, keepdims=True), jnp.finfo(weights.dtype).tiny)
    sizes = (shares * tokens.size[:, None, step.num_prefix_tokens :]).sum(2)
    row_map = first_min(-weights, axis=1)
    position = merged_position(tokens, weights, first_min(-weights, axis=2), step)
    reduced = behind_prefix(tokens, rows, sizes, position, row_map, step)
    return reduced, StepReport(row_map=row_map, soft=weights)


def behind_prefix(
    tokens: Tokens,
    rows: Float[Array, "b k d"],
    sizes: Float[Array, "b k"],
    position: Float[Array, "b k c"],
    row_map: Int[Array, "b n"],
    step: Step,
) -> Tokens:
    """Puts `rows` with their sizes and positions after the prefix; `row_map` maps incoming to outgoing rows."""
    behind = lambda values, new: jnp.concatenate([values[:, : step.num_prefix_tokens], new], axis=1)
    size = behind(tokens.size, sizes)
    return Tokens(
        x=behind(tokens.x, rows.astype(tokens.x.dtype)),
        size=size,
        policy=jnp.where(size > 0, 1.0, 0.0) if step.has_absent else jnp.ones_like(size),
        assign=compose(tokens.assign, row_map),
        position=behind(tokens.position, position),
    )
