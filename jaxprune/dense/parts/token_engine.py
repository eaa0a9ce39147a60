"""Runs a network whose tokens leave early so that they cost nothing: rows that stay move together between its heads.

Every stage is compiled for a few numbers of rows, the buckets. After a head the host reads how many tokens of each
image go on, and the batch continues in the smallest bucket that holds the largest of these numbers.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxprune.dense.parts.token_exits import left_aligned
from jaxprune.errors import UserError
from jaxprune.nn.params import merge, split


class TokenEngine:
    """Serves an `ExitSegmenter`, with numbers equal to those of the network itself.

    >>> import jax.numpy as jnp, jaxprune
    >>> from flax import nnx
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2, features=8, head_heads=2)
    >>> seg = jaxprune.dense.create("dtop", encoder="vit", num_classes=5, **sizes, rngs=nnx.Rngs(0))
    >>> engine = TokenEngine(seg, buckets=(4, 8))
    >>> engine(jnp.zeros((1, 32, 32, 3))).shape, engine.rows
    ((1, 32, 32, 5), [16, 16, 16])

    Args:
      model: the network.
      buckets: numbers of rows to compile for, besides that of all; by default the multiples of 64, or of an eighth of
        the tokens if that is less.

    Attributes:
      rows: number of tokens with which each stage of the last call ran, those that pad the batch included.
      calls: {(stage, rows): number of calls} since the engine was made.

    Raises:
      UserError: a bucket is not a number of rows.
    """

    def __init__(self, model: Any, *, buckets: Sequence[int] = ()):
        patches = model.encoder.sites()[0].num_patches
        step = min(64, max(patches // 8, 1))
        self.buckets = tuple(sorted(set(buckets) or set(range(step, patches, step))))
        if self.buckets and self.buckets[0] < 1:
            raise UserError(f"buckets={tuple(buckets)}: numbers of rows are 1 or more.")
        parts = split(model)
        self._arrays, self._prefix = {**parts.params, **parts.rest}, model.encoder.num_prefix_tokens
        self._stages = len(model.heads)
        self.rows: list[int] = []
        self.calls: Counter[tuple[int, int]] = Counter()

        def first(arrays: Any, images: Array) -> Any:
            network = merge(parts.graph, arrays, {})
            return network.advance(network.begin(images), 0)

        def go_on(arrays: Any, state: Any, stage: int, rows: int) -> Any:
            tokens = left_aligned(state.tokens, rows, self._prefix)
            return merge(parts.graph, arrays, {}).advance(state._replace(tokens=tokens), stage)

        def maps(arrays: Any, output: Any, shape: tuple[int, int]) -> Array:
            return merge(parts.graph, arrays, {}).segment(output, shape)

        self._first = jax.jit(first)
        self._go_on = jax.jit(go_on, static_argnums=(2, 3))
        self._maps = jax.jit(maps, static_argnums=2)

    def __call__(self, images: Float[Array, "b h w c"]) -> Float[Array, "b h w k"]:
        """Returns the score of each class at every pixel of normalised images."""
        state, output = self._first(self._arrays, images)
        self.rows = [state.tokens.x.shape[1] - self._prefix]
        self.calls[0, self.rows[0]] += 1
        for stage in range(1, self._stages):
            arriving = state.tokens.x.shape[1] - self._prefix
            is_present = np.asarray(state.tokens.policy)[:, self._prefix :] > 0
            longest = int(is_present.sum(1).max())
            rows = min((size for size in self.buckets if size >= longest), default=arriving)
            state, output = self._go_on(self._arrays, state, stage, min(rows, arriving))
            self.rows.append(min(rows, arriving))
            self.calls[stage, self.rows[-1]] += 1
        return self._maps(self._arrays, output, (images.shape[1], images.shape[2]))
