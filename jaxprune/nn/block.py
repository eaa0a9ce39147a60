"""The pre-norm transformer block, with a place for a token reducer."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.nn.attention import Attention, attend, hide, tell
from jaxprune.nn.drop_path import DropPath
from jaxprune.nn.linear import normal_02
from jaxprune.nn.mlp import Mlp
from jaxprune.nn.norm import LayerNorm
from jaxprune.nn.tokens import Attended, Tokens, take


class LayerScale(nnx.Module):
    """A learned factor per channel on a residual branch (Touvron et al., 2021)."""

    def __init__(self, dim: int, init_values: float):
        self.gamma = nnx.Param(jnp.full((dim,), init_values, jnp.float32))

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        return x * self.gamma[...].astype(x.dtype)[None, None, :]


class Block(nnx.Module):
    """`x += attn(norm1(x)); x += mlp(norm2(x))`, each branch with optional LayerScale and DropPath.

    A block calls its `reducer` where the reducer says: "before" the block (reading the attention of the block before),
    "attention" (choosing the rows that attention is computed for) or "after" (between attention and MLP).
    `jaxprune.reduction.apply` sets `reducer`, `needs`, `proportional` and `soft_policy`; a dense block has none.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        init_values: float | None = None,
        drop_path: float = 0.0,
        num_prefix_tokens: int = 1,
        kernel_init=normal_02,
        dtype=None,
        rngs: nnx.Rngs,
    ):
        common = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.norm1 = LayerNorm(dim)
        self.attn = Attention(dim, num_heads, qkv_bias=qkv_bias, **common)
        self.ls1 = nnx.data(LayerScale(dim, init_values) if init_values is not None else None)
        self.norm2 = LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), **common)
        self.ls2 = nnx.data(LayerScale(dim, init_values) if init_values is not None else None)
        self.drop_path = DropPath(drop_path)
        self.num_prefix_tokens = num_prefix_tokens
        self.reducer: Any = nnx.data(None)
        self.needs: frozenset[str] = frozenset()
        self.proportional = False
        self.soft_policy = False

    def __call__(
        self,
        tokens: Tokens,
        attended: Attended | None = None,
        *,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Tokens, Attended, Any]:
        """Runs the block.

        Args:
          attended: what the block before saw, for a reducer that runs before this block.
          key: randomness of DropPath and of the reducer; needed only in training.

        Returns:
          The new tokens, what this block's attention saw, and the reducer's aux (None without one).
        """
        keys = (None, None, None) if key is None else jax.random.split(key, 3)
        drop_keys = keys[:2] if train else (None, None)
        where = None if self.reducer is None else self.reducer.where
        aux = None

        if where == "before":
            tokens, aux = self.reducer(tokens, attended, train=train, key=keys[2])
        x = self.norm1(tokens.x)
        if where == "attention":
            # All keys and values, but only the rows of attention that the reducer keeps.
            q, k, v = self.attn.project(x)
            bias = hide(self._bias(tokens), tokens.policy)
            attended = tell(q, k, v, bias, tokens.policy, None, self.needs, self.num_prefix_tokens)
            tokens, aux = self.reducer(tokens, attended, train=train, key=keys[2])
            q = take(q.swapaxes(1, 2), aux.kept, self.num_prefix_tokens).swapaxes(1, 2)
            out = self.attn.merge_heads(attend(q, k, v, bias))
        else:
            out, attended = self.attn(
                x,
                bias=self._bias(tokens),
                policy=tokens.policy,
                soft_policy=self.soft_policy and train,
                needs=self.needs,
                num_prefix_tokens=self.num_prefix_tokens,
            )
        tokens = tokens._replace(x=tokens.x + self._branch(out, self.ls1, drop_keys[0]))
        if where == "after":
            tokens, aux = self.reducer(tokens, attended, train=train, key=keys[2])
        out = self.mlp(self.norm2(tokens.x))
        tokens = tokens._replace(x=tokens.x + self._branch(out, self.ls2, drop_keys[1]))
        return tokens, attended, aux

    def _branch(self, out: Array, scale: LayerScale | None, key: PRNGKeyArray | None) -> Array:
        return self.drop_path(out if scale is None else scale(out), key)

    def _bias(self, tokens: Tokens) -> Array | None:
        if self.proportional and tokens.size is not None:
            return jnp.log(tokens.size)[:, None, None, :]
        return None
