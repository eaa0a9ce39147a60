"""Queries of several granularities in each region of a map (DGE: Song et al., "Dynamic Grained Encoder", 2021)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.ops.straight_through import straight_through


def pooled(x: Float[Array, "b h w d"], side: int) -> Float[Array, "b H W d"]:
    """Average pooling of `side` × `side` tokens."""
    b, h, w, d = x.shape
    return x.reshape(b, h // side, side, w // side, side, d).mean((2, 4))


def queries(
    x: Float[Array, "b n d"], grid: tuple[int, int], splits: tuple[int, ...], num_prefix_tokens: int
) -> Float[Array, "b m d"]:
    """Returns the prefix, and the queries of the map at every granularity, whichever a region later chooses.

    Args:
      grid: grid of the tokens after the prefix.
      splits: the possible numbers of queries per side of a region; the largest is the region's side in tokens.

    Raises:
      UserError: the grid is not a whole number of regions.
    """
    region = max(splits)
    if grid[0] % region or grid[1] % region:
        raise UserError(
            f"A grid of {grid[0]}x{grid[1]} patches is not a whole number of regions of {region}: change img_size."
        )
    b, _, d = x.shape
    placed = x[:, num_prefix_tokens:].reshape(b, *grid, d)
    maps = [pooled(placed, region // split).reshape(b, -1, d) for split in splits]
    return jnp.concatenate([x[:, :num_prefix_tokens], *maps], axis=1)


def chosen(logits: Float[Array, "b H W s"], key: PRNGKeyArray | None = None) -> Float[Array, "b H W s"]:
    """The granularity of each region, one-hot; with a key by straight-through Gumbel softmax.

    Args:
      logits: logits of each region and granularity.
    """
    if key is None:
        return jax.nn.one_hot(logits.argmax(-1), logits.shape[-1], dtype=logits.dtype)
    noisy = logits + jax.random.gumbel(key, logits.shape, logits.dtype)
    return straight_through(noisy).astype(logits.dtype)


def spread(
    rows: Float[Array, "b m d"],
    gate: Float[Array, "b H W s"],
    grid: tuple[int, int],
    splits: tuple[int, ...],
    num_prefix_tokens: int,
) -> Float[Array, "b n d"]:
    """Copies the output of each query to the tokens it covers, at the granularity of their region."""
    b, _, d = rows.shape
    region, start = max(splits), num_prefix_tokens
    summed = jnp.zeros((b, *grid, d), rows.dtype)
    widened = jnp.repeat(jnp.repeat(gate, region, axis=1), region, axis=2).astype(rows.dtype)
    for index, split in enumerate(splits):
        side = region // split
        height, width = grid[0] // side, grid[1] // side
        part = rows[:, start : start + height * width].reshape(b, height, width, d)
        part = jnp.repeat(jnp.repeat(part, side, axis=1), side, axis=2)
        summed = summed + part * widened[..., index, None]
        start += height * width
    return jnp.concatenate([rows[:, :num_prefix_tokens], summed.reshape(b, -1, d)], axis=1)
