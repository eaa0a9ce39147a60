"""Learning a teacher's features and attention (TEC): the target, the adaptors in front of it, the loss of attention."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import UserError
from jaxprune.mim.parts.target import Target
from jaxprune.nn import LayerNorm, Linear, Mlp
from jaxprune.nn.block_cost import linear_flops

_EPS = 1e-5  # of the adaptors' norms; all others have 1e-6, as in MAE


@dataclasses.dataclass(frozen=True)
class TeacherFeatures(Target):
    """A teacher's features of every patch, which the framework computes.

    Args:
      size: the teacher's width.
      patch_size: patch size of the student, for pictures.
    """

    size: int
    patch_size: tuple[int, int]
    name = "teacher's features"
    picture_note = "The colours are the first three principal components of the predicted features, not pixels."

    def to_pixels(self, pred: Float[Array, "b p q"], images: Float[Array, "b H W c"]) -> Float[Array, "b p v"]:
        """The first principal components of features as one colour per patch, in the range of the images."""
        channels, (height, width) = images.shape[-1], self.patch_size
        flat = pred.reshape(-1, pred.shape[-1])
        flat = flat - flat.mean(0, keepdims=True)
        # Eigenvalues are in ascending order, so the largest variances come last.
        axes = jnp.linalg.eigh(flat.T @ flat)[1][:, : -channels - 1 : -1]
        components = pred @ axes
        low, high = components.min((0, 1), keepdims=True), components.max((0, 1), keepdims=True)
        share = (components - low) / jnp.maximum(high - low, 1e-12)
        darkest, brightest = images.min((0, 1, 2)), images.max((0, 1, 2))
        colours = darkest[None, None] + share * (brightest - darkest)[None, None]
        return jnp.tile(colours, (1, 1, height * width))


class Adaptors(nnx.Module):
    """Fuses the outputs of the blocks: each adaptor reads the same number of them, and their outputs are summed.

    Args:
      dim: width of a token.
      depth: number of blocks.
      num_adaptors: number of adaptors, which divide the blocks evenly.
      hidden: hidden width of their MLPs.
    """

    def __init__(self, dim: int, depth: int, num_adaptors: int, hidden: int, **common: Any):
        blocks_per_adaptor = depth // num_adaptors
        self.norm_before = LayerNorm(depth * dim, eps=_EPS)
        self.fuse = nnx.List([Linear(blocks_per_adaptor * dim, dim, **common) for _ in range(num_adaptors)])
        self.mlps = nnx.List([Mlp(dim, hidden, **common) for _ in range(num_adaptors)])
        self.norm_after = LayerNorm(dim, eps=_EPS)

    def __call__(self, features: tuple[Float[Array, "b n d"], ...]) -> Float[Array, "b n d"]:
        """Fuses the outputs of all blocks."""
        chunks = jnp.split(self.norm_before(jnp.concatenate(features, axis=-1)), len(self.fuse), axis=-1)
        fused = [fuse(chunk) for fuse, chunk in zip(self.fuse, chunks, strict=True)]
        adapted = [x + mlp(x) for x, mlp in zip(fused, self.mlps, strict=True)]
        return self.norm_after(sum(adapted[1:], adapted[0]))

    def flops(self, tokens: int) -> int:
        """Multiply-accumulates of one image."""
        layers = (layer for fuse, mlp in zip(self.fuse, self.mlps, strict=True) for layer in (fuse, mlp.fc1, mlp.fc2))
        return sum(linear_flops(layer, tokens) for layer in layers)


def divisor_of(depth: int, num_adaptors: int | None) -> int:
    """Returns the number of adaptors, one for three blocks by default.

    Raises:
      UserError: it does not divide the blocks.
    """
    if num_adaptors is None:
        count = max(depth // 3, 1)
        return count if depth % count == 0 else 1
    if num_adaptors < 1 or depth % num_adaptors:
        raise UserError(f"num_adaptors={num_adaptors} does not divide {depth} blocks: choose a divisor of {depth}.")
    return num_adaptors


def attention_loss(
    pred: Float[Array, "b m h p"],
    target: Float[Array, "b m h p"],
    ids: Int[Array, "b k"],
    tau: float,
    predicted: Bool[Array, "b p"] | None = None,
) -> Float[Array, ""]:
    """Cross-entropy of the attention distributions, averaged over queries, heads and images (TEC).

    Args:
      pred, target: logits; those of the target are divided by `tau`.
      ids: the query patches, which follow the CLS token.
      predicted: True where there is a prediction: other keys are masked on both sides, and other queries are ignored.
        None means everywhere.
    """
    target = target.astype(jnp.float32) / tau
    if predicted is None:
        return -(jax.nn.softmax(target) * jax.nn.log_softmax(pred)).sum(-1).mean()
    keys = predicted[:, None, None]
    weights = jax.nn.softmax(target, where=keys)
    crossed = -(weights * jnp.where(keys, jax.nn.log_softmax(pred, where=keys), 0.0)).sum(-1).mean(-1)
    queries = jnp.pad(jnp.take_along_axis(predicted, ids, axis=1), ((0, 0), (1, 0)), constant_values=True)
    return (crossed * queries).sum() / queries.sum()
