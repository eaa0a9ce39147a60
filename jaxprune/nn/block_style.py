"""The variant of a family's blocks: norms, MLP, positions and scales."""

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import unknown
from jaxprune.nn.rotary import Rotary, TubeRotary

MLPS = ("plain", "swiglu", "swiglu_packed")


class LayerScale(nnx.Module):
    """A learned scale per channel on a residual branch (Touvron et al., 2021)."""

    def __init__(self, dim: int, init_values: float):
        self.gamma = nnx.Param(jnp.full((dim,), init_values, jnp.float32))

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        return x * self.gamma[...].astype(x.dtype)[None, None, :]


@dataclasses.dataclass(frozen=True)
class Style:
    """The variant of a family's blocks, besides sizes; plain values.

    >>> Style(norm="rms", mlp="swiglu").proj_bias
    True

    Attributes:
      norm: "layer" or "rms".
      activation: activation of a plain MLP, see `nn.mlp.ACTIVATIONS`.
      mlp: "plain"; "swiglu", whose gate and value are each `mlp_ratio` times as wide as a token; or "swiglu_packed",
        where this is their combined width.
      align: round the hidden width of a SwiGLU up to a multiple of this.
      mlp_norm: whether the MLP normalises its hidden layer.
      attn_norm: whether there is a norm before attention's output projection.
      qk_norm: whether queries and keys are normalised per head.
      post_norm: whether the outputs of attention and MLP are normalised instead of their inputs; the norms' scales are
        then initialised with `init_values`, if set, and there is no LayerScale.
      mlp_scale: whether the MLP's branch has a LayerScale too, if there is one.
      proj_bias: whether output projection and MLP have biases.
      relative_bias: whether attention has learned biases by relative position (BEiT).
      rotary: rotary position embedding of queries and keys, or None.
      grained: the granularities, in queries per side, from which each region chooses one (DGE); () has one query per
        token.
    """

    norm: str = "layer"
    activation: str = "gelu"
    mlp: str = "plain"
    align: int = 1
    mlp_norm: bool = False
    attn_norm: bool = False
    qk_norm: bool = False
    post_norm: bool = False
    mlp_scale: bool = True
    proj_bias: bool = True
    relative_bias: bool = False
    rotary: Rotary | TubeRotary | None = None
    grained: tuple[int, ...] = ()

    def __post_init__(self):
        if self.mlp not in MLPS:
            raise unknown("mlp", self.mlp, MLPS)


PLAIN = Style()
