"""A convolution without bias and a LayerNorm over the channels of each place, as in detectron2's ViTDet."""

from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from jaxprune.nn import Conv, LayerNorm
from jaxprune.nn.linear import torch_uniform


class ConvNorm(nnx.Module):
    """Convolution, LayerNorm (eps 1e-6).

    Args:
      kernel_size: 1 or 3.
      uniform: start from PyTorch's default weights instead of normal ones (fan-out, ReLU's gain).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int,
        *,
        uniform: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.conv = Conv(in_features, out_features, kernel_size, dtype=dtype, rngs=rngs)
        if uniform:
            self.conv.kernel[...] = torch_uniform(in_features * kernel_size**2)(rngs.params(), self.conv.kernel.shape)
        self.norm = LayerNorm(out_features)

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b h w o"]:
        return self.norm(self.conv(x))
