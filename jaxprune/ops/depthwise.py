"""Depth-wise convolution, fast where XLA's grouped convolution is not."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from jaxprune.errors import UserError
from jaxprune.ops.convolution import are_operators

Implementation = Literal["shift_add", "grouped"]


def depthwise_conv2d(
    x: Float[Array, "b h w c"],
    kernel: Float[Array, "k k c"],
    bias: Float[Array, "c"] | None = None,
    implementation: Implementation | None = None,
    *,
    stride: int = 1,
    padding: tuple[tuple[int, int], tuple[int, int]] | None = None,
) -> Float[Array, "b H W c"]:
    """Correlates every channel with its own k×k filter (no kernel flip).

    Args:
      x: NHWC maps.
      kernel: one filter a channel; k is odd.
      bias: added to every channel, or None.
      implementation: "shift_add" sums k² shifted copies, "grouped" is XLA's grouped convolution. They agree up to
        rounding. None takes the faster one: shift_add on CPU, grouped on GPU and TPU and inside
        `ops.convolution.as_operators`.
      stride: stride of the convolution.
      padding: zeros ((above, below), (left, right)); None stands for k // 2, which keeps the size at stride 1.

    Raises:
      UserError: k is even and there is no padding, so the result would have another size.
    """
    half = kernel.shape[0] // 2
    centred = ((half, half), (half, half))
    if padding is None and kernel.shape[0] % 2 == 0:
        raise UserError(f"A depth-wise kernel of size {kernel.shape[0]} has no centre; choose an odd kernel_size.")
    kernel = kernel.astype(x.dtype)
    implementation = implementation or _usual()
    pads = centred if padding is None else padding
    if implementation == "grouped":
        out = _grouped(x, kernel, stride, pads)
    elif stride == 1 and pads == centred and kernel.shape[0] % 2:
        out = _shift_add(x, kernel)
    else:
        out = _sum_of_shifts(jnp.pad(x, ((0, 0), *pads, (0, 0))), kernel, stride)
    return out if bias is None else out + bias.astype(x.dtype)[None, None, None, :]


def _usual() -> Implementation:
    return "grouped" if are_operators() else "shift_add"


def _grouped(x: Array, kernel: Array, stride: int, padding: tuple[tuple[int, int], tuple[int, int]]) -> Array:
    return lax.conv_general_dilated(
        x,
        kernel[:, :, None, :],
        window_strides=(stride, stride),
        padding=padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[-1],
    )


def _sum_of_shifts(padded: Array, kernel: Array, stride: int) -> Array:
    k, (b, height, width, c) = kernel.shape[0], padded.shape
    rows, columns = (height - k) // stride + 1, (width - k) // stride + 1
    # Low-precision maps are summed in float32: k² terms are too many for eight bits of mantissa.
    total = jnp.zeros((b, rows, columns, c), jnp.promote_types(padded.dtype, jnp.float32))
    for i in range(k):
        for j in range(k):
            shifted = padded[:, i : i + stride * rows : stride, j : j + stride * columns : stride]
            total = total + shifted * kernel[i, j][None, None, None, :]
    return total.astype(padded.dtype)


@jax.custom_vjp
def _shift_add(x: Array, kernel: Array) -> Array:
    return _sum_of_shifts(_pad(x, kernel.shape[0]), kernel, 1)


def _shift_add_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _shift_add(x, kernel), (x, kernel)


def _shift_add_backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = residuals
    return _shift_add(gradient, kernel[::-1, ::-1]), _kernel_gradient(x, gradient, kernel.shape[0]).astype(kernel.dtype)


_shift_add.defvjp(_shift_add_forward, _shift_add_backward)


def _kernel_gradient(x: Array, gradient: Array, k: int) -> Array:
    """The (k, k, c) sums of `gradient` times each shift of `x`.

    XLA:CPU reduces over leading axes one value at a time, which is slow; summing whole rows first leaves one row in
    `height` to reduce (7×7 on 14×14×512: 0.8 ms per image instead of 7).
    """
    b, height, width, c = x.shape
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    padded, gradient = _pad(x, k).astype(dtype), gradient.astype(dtype)

    def column(j):
        shifted = lax.dynamic_slice_in_dim(padded, j, width, axis=2)

        def add_row(y, sums):
            grad_row = lax.dynamic_index_in_dim(gradient, y, axis=1, keepdims=False)
            return tuple(
                total + grad_row * lax.dynamic_index_in_dim(shifted, y + i, axis=1, keepdims=False)
                for i, total in enumerate(sums)
            )

        sums = lax.fori_loop(0, height, add_row, (jnp.zeros((b, width, c), dtype),) * k)
        return jnp.stack([total.sum((0, 1)) for total in sums])

    return lax.map(column, jnp.arange(k)).transpose(1, 0, 2)


def _pad(x: Array, k: int) -> Array:
    r = k // 2
    return jnp.pad(x, ((0, 0), (r, r), (r, r), (0, 0)))


def depthwise_conv3d(
    x: Float[Array, "b t h w c"],
    kernel: Float[Array, "s k k c"],
    implementation: Implementation | None = None,
    *,
    stride: int = 1,
) -> Float[Array, "b t H W c"]:
    """Correlates every channel of clips with its own s×k×k filter (no kernel flip); zeros keep the size at stride 1.

    >>> import jax.numpy as jnp
    >>> depthwise_conv3d(jnp.ones((1, 4, 6, 6, 2)), jnp.ones((3, 3, 3, 2)), stride=2).shape
    (1, 4, 3, 3, 2)

    Args:
      x: NTHWC clips.
      kernel: one filter a channel; s and k are odd.
      implementation: as of `depthwise_conv2d`; "shift_add" is a sum over s frames of such convolutions of each frame.
      stride: spatial stride; the temporal stride is 1.

    Raises:
      UserError: a side of the kernel is even.
    """
    frames, half = kernel.shape[0], kernel.shape[1] // 2
    if frames % 2 == 0 or kernel.shape[1] % 2 == 0:
        raise UserError(f"A depth-wise kernel of {kernel.shape[:3]} has no centre; choose odd sizes.")
    if (implementation or _usual()) == "grouped":
        return lax.conv_general_dilated(
            x,
            kernel.astype(x.dtype)[:, :, :, None, :],
            window_strides=(1, stride, stride),
            padding=((frames // 2, frames // 2), (half, half), (half, half)),
            dimension_numbers=("NDHWC", "DHWIO", "NDHWC"),
            feature_group_count=x.shape[-1],
        )
    b, t, *sides = x.shape
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32)).reshape(b * t, *sides)
    pads = ((half, half), (half, half))
    total: Any = 0
    for tap in range(frames):
        of_frames = depthwise_conv2d(wide, kernel[tap], None, "shift_add", stride=stride, padding=pads)
        # Shifted after the convolution: shifting the clip before it costs several times as much on CPU.
        total = total + _later(of_frames.reshape(b, t, *of_frames.shape[1:]), frames // 2 - tap)
    return total.astype(x.dtype)


def _later(x: Array, steps: int) -> Array:
    """Shifts clips by `steps` frames, padding with zeros."""
    if not steps or abs(steps) >= x.shape[1]:
        return x if not steps else jnp.zeros_like(x)
    kept = x[:, :-steps] if steps > 0 else x[:, -steps:]
    return jnp.pad(kept, ((0, 0), (max(steps, 0), max(-steps, 0)), *((0, 0),) * 3))
