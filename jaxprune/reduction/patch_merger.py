"""PatchMerger: learned queries attend to the tokens (Renggli et al., 2022, Sec. 3)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.nn import LayerNorm, attention_kernels
from jaxprune.reduction.parts import clusters, mixtures
from jaxprune.reduction.parts.base import Reducer


class PatchMerger(Reducer):
    """Row k is Σ_n W_kn x̂_n with W = softmax over the tokens of q_k · x̂_n, x̂ the normalised tokens.

    Even at keep rate 1 every row is a mixture of all normalised tokens, so it is never the dense model.

    Args:
      scaled: multiply the products by embed_dim^-½; the published models do not.
    """

    where = "before"
    drops = False
    identity_at_one = False
    needs_present = True
    published = "cluster_layers"

    def __init__(self, step, *, scaled: bool = False, rngs: nnx.Rngs | None = None):
        super().__init__(step)
        rngs = clusters.needed(rngs, "patch_merger")
        self.scale = step.embed_dim**-0.5 if scaled else 1.0
        self.norm = LayerNorm(step.embed_dim, eps=1e-5)
        shape = (step.num_keep, step.embed_dim)
        self.queries = nnx.Param(jax.random.normal(rngs.params(), shape, jnp.float32))

    def flops(self) -> int:
        """2·k·n·d: the products of k queries with the n incoming rows, and the mixing."""
        return 2 * self.step.num_keep * self.step.tokens_in * self.step.embed_dim

    def mix(self, x: Float[Array, "b n d"]) -> tuple[Float[Array, "b k d"], Float[Array, "b k n"]]:
        """The new rows, and the weights with which they mix the normalised tokens."""
        x = self.norm(x)
        logits = clusters.project(x, self.queries[...] * self.scale)
        weights = jax.nn.softmax(logits, axis=2)
        return weights.astype(x.dtype) @ x, weights

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix = self.step.num_prefix_tokens
        if attention_kernels.row_block() is not None:
            x = self.norm(tokens.x[:, prefix:])
            logits = mixtures.Logits(self.queries[...] * self.scale, x)
            return mixtures.mixed(tokens, x, mixtures.softmax(logits), self.step)
        rows, weights = self.mix(tokens.x[:, prefix:])
        return clusters.mixed(tokens, rows, weights, self.step)
