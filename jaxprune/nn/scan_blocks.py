"""Runs blocks that are alike in one compiled loop, so that compiling does not take longer for more of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.nn.drop_path import DropPath
from jaxprune.nn.params import copied
from jaxprune.nn.reducible import Reducible
from jaxprune.nn.tokens import Tokens


def scan_blocks(
    blocks: Sequence[Reducible],
    tokens: Tokens,
    *,
    grid: tuple[int, ...] | None = None,
    train: bool = False,
    key: PRNGKeyArray | None = None,
    layer: int = 0,
    remat: bool = False,
) -> tuple[Tokens, Float[Array, "l b n d"]]:
    """Runs blocks that are alike, see `stretches`, in one `jax.lax.scan` over their stacked parameters.

    The results are those of `run_block` for each in turn, up to rounding. The backward pass keeps matrix products and
    recomputes what lies between them. Their parameters are stacked inside the program, which therefore holds them, and
    their gradients, twice.

    Args:
      blocks: without reducers.
      grid, train, remat: see `run_block`.
      key: of the network; that of a block is folded from it and the number of its layer.
      layer: the number of the first block.

    Returns:
      The tokens after the last block, and the rows after each.
    """
    graph, _ = _parts(blocks[0])
    stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *(_parts(block)[1] for block in blocks))
    rates = [_rate(block) for block in blocks]

    def step(tokens: Tokens, inputs: tuple) -> tuple[Tokens, Array]:
        state, rate, number = inputs
        block = nnx.merge(graph, state)
        if train and any(rates):
            block.drop_path = DropPath(rate)
        of_block = None if key is None else jax.random.fold_in(key, number)
        tokens, _, _ = block(tokens, grid=grid, train=train, key=of_block)
        return tokens, tokens.x

    numbers = layer + jnp.arange(len(blocks))
    inputs = (stacked, jnp.asarray(rates, jnp.float32), numbers)
    # A loop keeps all that its backward pass reads; of unrolled blocks the compiler recomputes what is cheap. MAE with
    # a ViT-S takes 1.27 times their memory so, and .59 times with this policy (as compiled for a CPU).
    policy = None if remat else jax.checkpoint_policies.dots_saveable
    return jax.lax.scan(jax.checkpoint(step, prevent_cse=False, policy=policy), tokens, inputs)


def stretches(blocks: Sequence[Reducible], alone: Sequence[bool]) -> Iterator[Sequence[Reducible]]:
    """Cuts a sequence of blocks into the longest stretches of blocks that are alike but for the rate of DropPath.

    Args:
      alone: for each block, whether it is a stretch of its own.
    """
    first, before = 0, None
    for index, (block, single) in enumerate(zip(blocks, alone, strict=True)):
        shape = None if single else _shape(block)
        if index and (shape is None or shape != before):
            yield blocks[first:index]
            first = index
        before = shape
    if blocks:
        yield blocks[first:]


def _parts(block: Reducible) -> tuple[Any, Any]:
    """The structure and the arrays of a block without its DropPath."""
    plain = copied(block)
    plain.drop_path = DropPath()
    return nnx.split(plain)


def _rate(block: Any) -> float:
    return block.drop_path.rate


def _shape(block: Reducible) -> tuple[Any, ...]:
    """What blocks that are alike have in common."""
    graph, state = _parts(block)
    leaves, layout = jax.tree.flatten(state)
    return graph, layout, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
