"""SiT, token slimming: learned softmax mixtures of all tokens (Zong et al., 2022, Sec. 3.2)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.nn import LayerNorm, Linear, attention_kernels
from jaxprune.nn.block_cost import linear_flops
from jaxprune.reduction.parts import clusters, mixtures
from jaxprune.reduction.parts.base import Reducer


class Sit(Reducer):
    """Row k is Σ_n W_kn x_n with W = softmax over the tokens of scale · MLP(x), one output of the MLP per row.

    Even at keep rate 1 every row is a mixture of all tokens, so it is never the dense model.
    """

    where = "before"
    drops = False
    identity_at_one = False
    needs_present = True
    published = "cluster_layers"
    renames: ClassVar[dict[str, str]] = {"weight.0": "norm", "weight.1": "fc1", "weight.3": "fc2"}

    def __init__(self, step, *, rngs: nnx.Rngs | None = None):
        super().__init__(step)
        rngs = clusters.needed(rngs, "sit")
        hidden = step.embed_dim // 2
        self.norm = LayerNorm(step.embed_dim, eps=1e-5)
        self.fc1 = Linear(step.embed_dim, hidden, rngs=rngs)
        self.fc2 = Linear(hidden, step.num_keep, rngs=rngs)
        self.scale = nnx.Param(jnp.ones((1, 1, 1), jnp.float32))

    def flops(self) -> int:
        """n·d²/2 + n·k·d/2 for the MLP on the n incoming rows, k·n·d for mixing k rows."""
        n, k, d = self.step.tokens_in, self.step.num_keep, self.step.embed_dim
        return linear_flops(self.fc1, n) + linear_flops(self.fc2, n) + k * n * d

    def features(self, x: Float[Array, "b n d"]) -> Float[Array, "b n e"]:
        """The output of the hidden layer."""
        return jax.nn.gelu(self.fc1(self.norm(x)), approximate=False)

    def mix(self, x: Float[Array, "b n d"]) -> tuple[Float[Array, "b k d"], Float[Array, "b k n"]]:
        """The new rows, and the weights with which they mix the tokens."""
        logits = self.fc2(self.features(x)).astype(jnp.float32) * self.scale[...]
        weights = jax.nn.softmax(logits.swapaxes(1, 2), axis=2)
        return weights.astype(x.dtype) @ x, weights

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix = self.step.num_prefix_tokens
        if attention_kernels.row_block() is not None:
            x = tokens.x[:, prefix:]
            # The bias of a row's output is the same for all tokens, so the softmax over them cancels it.
            logits = mixtures.Logits(self.fc2.kernel[...].T, self.features(x), self.scale[...])
            return mixtures.mixed(tokens, x, mixtures.softmax(logits), self.step)
        rows, weights = self.mix(tokens.x[:, prefix:])
        return clusters.mixed(tokens, rows, weights, self.step)
