"""A head that maps a student's tokens to the features of a teacher, with PR-MIM's aggregation of thrown patches."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.mim.parts.decoder import Decoder
from jaxprune.mim.parts.masker import Masks
from jaxprune.mim.parts.partial_reconstruction import FULL, Partial
from jaxprune.mim.parts.rebuild_thrown import fill_grid
from jaxprune.nn import LayerNorm, Linear
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.linear import xavier_uniform


class FeatureHeadFlops(NamedTuple):
    """The cost of a `FeatureHead` by part."""

    aggregate: int
    predict: int

    total = property(sum)  # of all parts


class FeatureHead(Decoder):
    """`fc2(gelu(norm(fc1(x))))` of every token, and of rebuilt ones under "progressive" reconstruction.

    Args:
      in_dim, out_dim: widths of the student's tokens and of the features.
      grid: patches down and across.
      num_prefix_tokens: prefix tokens of the student.
      num_heads: of an aggregation by a transformer block.
      partial: the kind of reconstruction, and how the patches that the student does not see are rebuilt.
      dtype: compute dtype; parameters stay float32.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        grid: tuple[int, int],
        num_prefix_tokens: int,
        num_heads: int,
        partial: Partial = FULL,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.grid, self.num_prefix_tokens, self.reconstruction = grid, num_prefix_tokens, partial.reconstruction
        common = {"kernel_init": xavier_uniform, "dtype": dtype, "rngs": rngs}
        self.fc1 = Linear(in_dim, out_dim, **common)
        self.norm = LayerNorm(out_dim, eps=1e-5)
        self.fc2 = Linear(out_dim, out_dim, **common)
        self.aggregate = nnx.data(
            partial.create_aggregation(in_dim, num_heads=num_heads, mlp_ratio=4.0, dtype=dtype, rngs=rngs)
        )

    def project(self, x: Float[Array, "*lead d"]) -> Float[Array, "*lead q"]:
        """Maps tokens to features, in float32."""
        return self.fc2(jax.nn.gelu(self.norm(self.fc1(x)), approximate=False)).astype(jnp.float32)

    def __call__(self, latent: Float[Array, "b n d"], masks: Masks) -> Float[Array, "b p q"]:
        """The features of every patch, or of those that the student sees under "partial"; zeros elsewhere.

        Args:
          latent: the student's output: prefix tokens, then the patches that it sees, in raster order.
        """
        x = latent[:, self.num_prefix_tokens :]
        if self.aggregate is None:
            features = self.project(x)
            return features if x.shape[1] == masks.masked.shape[1] else fill_grid(features, ~masks.masked)
        return self.project(self.aggregate(fill_grid(x, ~masks.masked), masks.masked, self.grid))

    def flops(self, visible: int, present: int, *, as_published: bool = True) -> FeatureHeadFlops:
        """Multiply-accumulates of one image by part, with the token of the whole image; see `Decoder.flops`."""
        patches = visible if self.aggregate is None else self.grid[0] * self.grid[1]
        return FeatureHeadFlops(
            aggregate=0 if self.aggregate is None else self.aggregate.flops(self.grid),
            predict=linear_flops(self.fc1, 1 + patches) + linear_flops(self.fc2, 1 + patches),
        )
