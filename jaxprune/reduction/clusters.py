"""What the methods that merge tokens share: distances, assignment to centres, and the account of merged rows."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn.tokens import Tokens
from jaxprune.reduction.base import Step, StepReport
from jaxprune.reduction.rows import compose, merged_position


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


def clustered(
    tokens: Tokens,
    rows: Float[Array, "b k d"],
    row_map: Int[Array, "b n"],
    centres: Int[Array, "b k"],
    step: Step,
) -> tuple[Tokens, StepReport]:
    """Puts `rows` in place of the clusters that `row_map` names; a row's size is the sum over its cluster."""
    num_clusters, sizes = rows.shape[1], tokens.size[:, step.num_prefix_tokens :]
    add_up = jax.vmap(lambda values, rows: jax.ops.segment_sum(values, rows, num_clusters))
    shares = jnp.where(members(row_map, num_clusters), sizes[:, None, :], 0)
    position = merged_position(tokens, shares, centres, step)
    reduced = _behind_prefix(tokens, rows, add_up(sizes, row_map), position, row_map, step)
    return reduced, StepReport(row_map=row_map, kept=centres)


def mixed(
    tokens: Tokens, rows: Float[Array, "b k d"], weights: Float[Array, "b k n"], step: Step
) -> tuple[Tokens, StepReport]:
    """Puts `rows` in place of the tokens they were mixed from with `weights`.

    A patch is assigned to the row in which its token weighs most. Sizes count no such winner, which would call rows
    without one absent: each token's size is shared out over the rows in proportion to its weights, so their sum stays.
    """
    shares = weights / jnp.maximum(weights.sum(1, keepdims=True), jnp.finfo(weights.dtype).tiny)
    sizes = (shares * tokens.size[:, None, step.num_prefix_tokens :]).sum(2)
    row_map = first_min(-weights, axis=1)
    position = merged_position(tokens, weights, first_min(-weights, axis=2), step)
    reduced = _behind_prefix(tokens, rows, sizes, position, row_map, step)
    return reduced, StepReport(row_map=row_map, soft=weights)


def _behind_prefix(
    tokens: Tokens,
    rows: Float[Array, "b k d"],
    sizes: Float[Array, "b k"],
    position: Float[Array, "b k c"],
    row_map: Int[Array, "b n"],
    step: Step,
) -> Tokens:
    behind = lambda values, new: jnp.concatenate([values[:, : step.num_prefix_tokens], new], axis=1)
    size = behind(tokens.size, sizes)
    return Tokens(
        x=behind(tokens.x, rows.astype(tokens.x.dtype)),
        size=size,
        policy=jnp.where(size > 0, 1.0, 0.0) if step.masked else jnp.ones_like(size),
        assign=compose(tokens.assign, row_map),
        position=behind(tokens.position, position),
    )
