"""What the methods that merge tokens share: distances, assignment to centres, and the account of merged rows."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn.tokens import Tokens
from jaxprune.reduction.base import Aux
from jaxprune.reduction.rows import compose


def distances(x: Float[Array, "b n d"]) -> Float[Array, "b n n"]:
    """Euclidean distances between the tokens of each image, in float32 and without gradient; 0 to itself."""
    x = jax.lax.stop_gradient(x).astype(jnp.float32)
    # |a|² + |b|² - 2ab is one matrix product, but loses digits to what all tokens have in common: out with that first.
    # Norms from the diagonal of the same product make equal tokens exactly equal.
    x = x - x.mean(1, keepdims=True)
    gram = jax.lax.dot_general(x, x, (((2,), (2,)), ((0,), (0,))), precision=jax.lax.Precision.HIGHEST)
    norms = jnp.diagonal(gram, axis1=1, axis2=2)
    return jnp.sqrt(jnp.maximum(norms[:, :, None] + norms[:, None, :] - 2 * gram, 0))


def first_min(values: Float[Array, "b m n"], axis: int) -> Int[Array, "b _"]:
    """Index of the smallest value along `axis` (1 or 2), of equal ones the first.

    Two plain minima: on CPU they are vectorised, `argmin` is not.
    """
    last = values.shape[axis] - 1
    places = jax.lax.broadcasted_iota(jnp.int32, values.shape, axis)
    return jnp.where(values == values.min(axis, keepdims=True), places, last).min(axis)


def nearest(distance: Float[Array, "b n n"], centres: Int[Array, "b k"]) -> Int[Array, "b n"]:
    """The cluster of every token: the nearest of the tokens `centres`, of equally near ones the first."""
    return first_min(jax.vmap(lambda d, c: d[c])(distance, centres), axis=1)


def members(assign: Int[Array, "b n"], num_clusters: int) -> Array:
    """True where a token (last axis) belongs to a cluster (middle axis)."""
    return assign[:, None, :] == jnp.arange(num_clusters, dtype=assign.dtype)[None, :, None]


def project(x: Float[Array, "b n d"], directions: Float[Array, "k d"]) -> Float[Array, "b k n"]:
    """Dot product of every direction with every token, in float32."""
    b, n, d = x.shape
    # Flat, as in `nn.Linear`: one plain product, forward and backward.
    products = x.reshape(b * n, d) @ directions.T.astype(x.dtype)
    return products.reshape(b, n, -1).swapaxes(1, 2).astype(jnp.float32)


def needed(rngs: nnx.Rngs | None, method: str) -> nnx.Rngs:
    """Returns `rngs`, which a method with parameters cannot do without."""
    if rngs is None:
        raise UserError(f"{method} has parameters to initialise: give rngs=nnx.Rngs(0) to reduction.apply.")
    return rngs


def unchanged(tokens: Tokens, num_prefix_tokens: int) -> tuple[Tokens, Aux]:
    """As many clusters as tokens: every token stays a row of its own, in its place."""
    b, n = tokens.x.shape[:2]
    rows = jnp.arange(n - num_prefix_tokens, dtype=jnp.int32)
    rows = jnp.broadcast_to(rows[None, :], (b, rows.shape[0]))
    return tokens, Aux(row_map=rows, kept=rows)


def clustered(
    tokens: Tokens,
    rows: Float[Array, "b k d"],
    row_map: Int[Array, "b n"],
    centres: Int[Array, "b k"],
    num_prefix_tokens: int,
) -> tuple[Tokens, Aux]:
    """Puts `rows` in place of the clusters that `row_map` names; a row's size is the sum over its cluster."""
    num_clusters = rows.shape[1]
    add_up = jax.vmap(lambda sizes, rows: jax.ops.segment_sum(sizes, rows, num_clusters))
    sizes = add_up(_sizes(tokens)[:, num_prefix_tokens:], row_map)
    return _behind_prefix(tokens, rows, sizes, row_map, num_prefix_tokens), Aux(row_map=row_map, kept=centres)


def mixed(
    tokens: Tokens, rows: Float[Array, "b k d"], weights: Float[Array, "b k n"], num_prefix_tokens: int
) -> tuple[Tokens, Aux]:
    """Puts `rows` in place of the tokens they were mixed from with `weights`.

    A patch is assigned to the row in which its token weighs most. Sizes count no such winner, which would call rows
    without one absent: each token's size is shared out over the rows in proportion to its weights, so their sum stays.
    """
    shares = weights / jnp.maximum(weights.sum(1, keepdims=True), jnp.finfo(weights.dtype).tiny)
    sizes = (shares * _sizes(tokens)[:, None, num_prefix_tokens:]).sum(2)
    row_map = first_min(-weights, axis=1)
    return _behind_prefix(tokens, rows, sizes, row_map, num_prefix_tokens), Aux(row_map=row_map, soft=weights)


def _sizes(tokens: Tokens) -> Float[Array, "b n"]:
    return jnp.ones(tokens.x.shape[:2], jnp.float32) if tokens.size is None else tokens.size


def _behind_prefix(
    tokens: Tokens,
    rows: Float[Array, "b k d"],
    sizes: Float[Array, "b k"],
    row_map: Int[Array, "b n"],
    num_prefix_tokens: int,
) -> Tokens:
    return Tokens(
        x=jnp.concatenate([tokens.x[:, :num_prefix_tokens], rows.astype(tokens.x.dtype)], axis=1),
        size=jnp.concatenate([_sizes(tokens)[:, :num_prefix_tokens], sizes], axis=1),
        policy=None,
        assign=None if tokens.assign is None else compose(tokens.assign, row_map),
    )
