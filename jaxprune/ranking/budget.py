"""The memory budget of pseudo labels: an estimate per removal, and how many fit at the same time."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.mim import TokenDecoder


def fit_memory(
    decoder: TokenDecoder, batch: int, visible: int, decoded: int, *, memory: int | None = None, shards: int = 1
) -> tuple[int, int]:
    """Returns the number of parts of a batch, and the number of simultaneous removals in each part.

    Args:
      visible, decoded: number of visible patches per image, and of masked ones that enter the decoder.
      memory: bytes per device besides weights and images; None computes everything at once.
      shards: number of devices that share the batch; where they cannot evenly, some have an image less.

    Raises:
      UserError: a single removal from one image exceeds the memory.
    """
    if memory is None:
        return 1, visible
    divided = batch if batch % shards else batch // shards  # equal parts, on each device where that is possible
    for parts in (count for count in range(1, divided + 1) if divided % count == 0):
        for chunks in range(1, visible + 1):
            at_once, images = math.ceil(visible / chunks), math.ceil(batch / parts / shards)
            if estimated_bytes(decoder, images, at_once, visible, decoded) <= memory:
                return parts, at_once
    least = estimated_bytes(decoder, 1, 1, visible, decoded)
    raise UserError(
        f"Pseudo labels take about {least / 2**20:.3g} MiB for one removal from one image, and memory is limited to "
        f"{memory / 2**20:.3g} MiB: raise the limit, or raise throw_ratio."
    )


def estimated_bytes(decoder: TokenDecoder, images: int, at_once: int, visible: int, decoded: int) -> int:
    """An upper estimate of the bytes of `at_once` simultaneous removals from each of `images`."""
    block = decoder.blocks[0]
    width, heads = block.attn.proj.kernel.shape[0], block.attn.num_heads
    hidden, pixels = block.mlp.fc1.kernel.shape[1], decoder.pred.kernel.shape[1]
    patches, rows = decoder.grid[0] * decoder.grid[1], decoded + decoder.num_prefix_tokens + visible
    # Per row: in attention its scores before and after the exponential, besides queries, keys and values in two
    # layouts; or the MLP's hidden layer before and after GELU.
    row = 2 * width + max(2 * heads * rows + 7 * width, 2 * hidden + width, 2 * pixels)
    # Per image: its patches, the anchor, and the part of the first block that the removals share.
    image = 3 * patches * pixels + rows * (pixels + 6 * width + 2 * heads * rows)
    return 4 * images * (image + at_once * rows * row)


def in_chunks(
    change: Callable[[Int[Array, "c"]], Float[Array, "b c"]], count: int, at_once: int
) -> Float[Array, "b {count}"]:
    """Concatenates `change` of the indices 0 … count - 1, `at_once` of them at a time."""
    numbers, chunked = jnp.arange(count), count // at_once * at_once
    if chunked == at_once:
        parts = [change(numbers[:chunked])]
    else:
        chunks = jax.lax.map(change, numbers[:chunked].reshape(-1, at_once))
        parts = [chunks.swapaxes(0, 1).reshape(-1, chunked)]
    if chunked < count:
        parts.append(change(numbers[chunked:]))
    return jnp.concatenate(parts, axis=1)
