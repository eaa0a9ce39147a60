"""Runs a network whose gates skip whole blocks, and computes a block only for the images that need it."""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from jaxprune.dynamic.engine import buckets_of, require_images
from jaxprune.dynamic.laudnet import LAUDNet
from jaxprune.errors import UserError
from jaxprune.nn.images import as_input
from jaxprune.nn.params import merge, split


class Skipped(NamedTuple):
    """Predictions, and the blocks that were computed for them.

    Attributes:
      logits: of the classes.
      computed: for each block in the order of the network, whether it was computed for each image.
    """

    logits: Float[np.ndarray, "n c"]
    computed: Bool[np.ndarray, "m n"]


class LayerSkipper:
    """Serves a LAUDNet of mode "layer": before each block the images that need it are put together on the host.

    >>> from flax import nnx
    >>> model = LAUDNet(img_size=32, width=8, layers=(1, 1, 1, 1), num_classes=3, rngs=nnx.Rngs(0))
    >>> LayerSkipper(model, batch_size=2)(np.zeros((3, 32, 32, 3), np.uint8)).computed.shape
    (4, 3)

    Each block's program is compiled for a few batch sizes, the buckets; rows that fill up a bucket are copies.

    Args:
      model: the network.
      batch_size: the largest number of images that are computed together.
      buckets: batch sizes to compile for; by default the powers of two up to `batch_size`, and itself.

    Attributes:
      rows: {name of the block: number of rows computed, with copies}.

    Raises:
      UserError: a gate decides about places or channels, which are not skipped but masked.
    """

    def __init__(self, model: LAUDNet, *, batch_size: int = 32, buckets: Sequence[int] = ()):
        if modes := sorted({block.mode for block in model.blocks.values()} - {"layer"}):
            raise UserError(
                f"Gates of mode {', '.join(modes)} mask what they skip, and save no time: use modes=('layer', …), or "
                "call the network."
            )
        if any(block.masker_spatial.groups > 1 for block in model.blocks.values()):
            raise UserError(
                "Blocks with several mask_groups are not skipped: use mask_groups=(1, …), or call the network."
            )
        self.buckets = buckets_of(batch_size, buckets)
        parts = split(model)
        self._arrays = {**parts.params, **parts.rest}
        self._names, self.rows = tuple(model.blocks), Counter[str]()

        def program(call: Callable[..., Any]) -> Callable[..., Any]:
            return jax.jit(lambda arrays, *inputs: call(merge(parts.graph, arrays, {}), *inputs))

        self._stem, self._head = program(_stem), program(lambda model, x: model.fc(x.mean((1, 2))))
        self._decide = {name: program(functools.partial(_decide, name)) for name in self._names}
        self._compute = {name: program(functools.partial(_compute, name)) for name in self._names}

    def __call__(self, images: np.ndarray) -> Skipped:
        """Predicts images, pixels from 0 to 255, uint8 (n, h, w, 3).

        Raises:
          UserError: there are none.
        """
        require_images(len(images))
        size = self.buckets[-1]
        parts = [self._batch(images[start : start + size]) for start in range(0, len(images), size)]
        return Skipped(np.concatenate([part.logits for part in parts]), np.concatenate([p.computed for p in parts], 1))

    def _batch(self, images: np.ndarray) -> Skipped:
        x = self._stem(self._arrays, _filled(images, self.buckets))
        computed = []
        for name in self._names:
            opens, shortcut = self._decide[name](self._arrays, x)
            computed.append(np.asarray(opens)[: len(images)])
            rows = np.flatnonzero(computed[-1])
            if len(rows):
                ids = _filled(rows, self.buckets)
                self.rows[name] += len(ids)
                x = self._compute[name](self._arrays, x, shortcut, ids)
            else:
                x = jax.nn.relu(shortcut)
        return Skipped(np.asarray(self._head(self._arrays, x))[: len(images)], np.stack(computed))


def _filled(rows: np.ndarray, buckets: Sequence[int]) -> np.ndarray:
    """Fills up the smallest bucket that holds some rows with copies of the first."""
    bucket = min(size for size in buckets if size >= len(rows))
    return rows[np.arange(bucket) * (np.arange(bucket) < len(rows))]


def _stem(model: LAUDNet, pixels: Any) -> jax.Array:
    return model.stem(as_input(pixels, model.preprocessing).astype(model.dtype or jnp.float32))


def _decide(name: str, model: LAUDNet, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    block = model.blocks[name]
    return block.opens(x), block.shortcut(x)


def _compute(name: str, model: LAUDNet, x: jax.Array, shortcut: jax.Array, ids: jax.Array) -> jax.Array:
    # Rows that fill up a bucket repeat an image, so they are set and not added.
    return jax.nn.relu(shortcut.at[ids].set(shortcut[ids] + model.blocks[name].branch(x[ids])))
