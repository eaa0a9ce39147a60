"""Attention pooling: one learned query attends to all tokens (MAP head; Zhai et al., 2022)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.nn.attention import attend, merge_heads
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.linear import Linear, normal_02
from jaxprune.nn.mlp import Mlp
from jaxprune.nn.norm import make_norm
from jaxprune.nn.tokens import log_sizes


class AttentionPool(nnx.Module):
    """`x = proj(attention of the latent to the tokens); x + mlp(norm(x))`.

    Args:
      dim: width of a token.
      num_heads: attention heads.
      norm, norm_eps: see `nn.norm`.
      activation: activation of the MLP.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        mlp_ratio: float = 4.0,
        norm: str = "layer",
        norm_eps: float = 1e-6,
        activation: str = "gelu",
        kernel_init=normal_02,
        dtype=None,
        rngs,
    ):
        if dim % num_heads:
            raise UserError(f"embed_dim {dim} is not divisible by the {num_heads} heads of its attention pooling.")
        common = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.num_heads = num_heads
        self.latent = nnx.Param(normal_02(rngs.params(), (1, 1, dim)))
        self.q = Linear(dim, dim, **common)
        self.kv = Linear(dim, 2 * dim, **common)
        self.proj = Linear(dim, dim, **common)
        self.norm = make_norm(norm, dim, norm_eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), activation=activation, **common)

    def flops(self) -> tuple[int, int]:
        """Multiply-accumulates per image, and per token."""
        once = sum(linear_flops(layer, 1) for layer in (self.q, self.proj, self.mlp.fc1, self.mlp.fc2))
        return once, linear_flops(self.kv, 1) + 2 * self.proj.kernel.shape[0]

    def __call__(self, x: Float[Array, "b n d"], size: Float[Array, "b n"]) -> Float[Array, "b d"]:
        """Pools tokens, weighted by the number of patches they hold.

        Args:
          size: number of patches per token; 0 masks a token.
        """
        b, n, d = x.shape
        heads = lambda values: values.reshape(*values.shape[:-1], self.num_heads, d // self.num_heads)
        k, v = heads(self.kv(x).reshape(b, n, 2, d)).transpose(2, 0, 3, 1, 4)
        q = heads(self.q(self.latent[...].astype(x.dtype))).transpose(0, 2, 1, 3)
        bias = jnp.where(size > 0, log_sizes(size), jnp.finfo(jnp.float32).min)[:, None, None, :]
        pooled = self.proj(merge_heads(attend(jnp.broadcast_to(q, (b, *q.shape[1:])), k, v, bias)))
        return (pooled + self.mlp(self.norm(pooled)))[:, 0]
