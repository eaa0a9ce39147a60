"""3×3 convolution by Winograd's minimal filtering (Lavin and Gray, 2016), fast where XLA's operator is not."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from jaxprune.ops.convolution import are_operators

_Padding = tuple[tuple[int, int], tuple[int, int]]
# F(2×2, 3×3): four neighbouring results take 16 products of transformed values in place of 36.
_RESULTS, _POINTS = 2, 4
# With fewer places, transforming the filters takes longer than what it saves: measured for 24 to 2,048 channels.
_PLACES = 4096
# Above this, the transformed maps of one image after another.
_BYTES = 2**28
_KERNEL_TRANSFORM = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])


def is_faster(x: Float[Array, "b h w i"], kernel: Float[Array, "k k i o"]) -> bool:
    """Whether `conv2d_3x3` is to convolve maps at stride 1: on CPU, in float32, 3×3 filters and many places."""
    if are_operators() or kernel.shape[:2] != (3, 3) or x.dtype != jnp.float32:
        return False
    batch = x.shape[0] if isinstance(x.shape[0], int) else 1  # a symbolic batch can be of one image
    return batch * x.shape[1] * x.shape[2] >= _PLACES


def conv2d_3x3(
    x: Float[Array, "b h w i"],
    kernel: Float[Array, "3 3 i o"],
    padding: _Padding = ((1, 1), (1, 1)),
) -> Float[Array, "b H W o"]:
    """Correlates maps with 3×3 filters at stride 1 (no kernel flip), by Winograd's F(2×2, 3×3).

    Lavin and Gray (2016), Eq. 8. Takes 16 matrix products of a quarter of the places instead of nine of all of them,
    2.25 times fewer multiplications. Differs from the direct sum by rounding, about 1e-6 of the largest value.

    >>> import jax.numpy as jnp
    >>> conv2d_3x3(jnp.ones((1, 5, 6, 2)), jnp.ones((3, 3, 2, 1)))[0, :2, :3, 0]
    Array([[ 8., 12., 12.],
           [12., 18., 18.]], dtype=float32)

    Args:
      x: NHWC maps, float32.
      kernel: HWIO.
      padding: zeros ((above, below), (left, right)).
    """
    images, rows, columns, channels = x.shape
    # What the products read and return is four times as large as the maps.
    transformed = 4 * rows * columns * (channels + kernel.shape[-1]) * x.dtype.itemsize
    if not isinstance(images, int) or images == 1 or images * transformed <= _BYTES:
        return _convolved(x, kernel, padding)
    return lax.map(lambda image: _convolved(image[None], kernel, padding)[0], x)


def _by_products(x: Array, kernel: Array, padding: _Padding) -> Array:
    batch, features = x.shape[0], kernel.shape[-1]
    sides = [side + sum(pads) - 2 for side, pads in zip(x.shape[1:3], padding, strict=True)]
    rows, columns = (-(-side // _RESULTS) for side in sides)
    filled = [(low, high + side % _RESULTS) for (low, high), side in zip(padding, sides, strict=True)]
    x = _padded(x, filled)
    points = range(_POINTS)
    inputs = [_input([x[:, i::_RESULTS, j::_RESULTS][:, :rows, :columns] for i in points]) for j in points]
    inputs = [_input([inputs[j][point] for j in points]) for point in points]
    transform = jnp.asarray(_KERNEL_TRANSFORM, kernel.dtype)
    filters = jnp.einsum("ai,bj,ijco->abco", transform, transform, kernel)
    products = [[inputs[a][b].reshape(-1, x.shape[-1]) @ filters[a, b] for a in points] for b in points]
    half = [_output(of_column) for of_column in products]
    tiles = [_output([half[b][row] for b in points]) for row in range(_RESULTS)]
    y = jnp.stack([jnp.stack(row, axis=1) for row in tiles], axis=1)  # (b·rows·columns, 2, 2, o)
    y = y.reshape(batch, rows, columns, _RESULTS, _RESULTS, features).swapaxes(2, 3)
    return y.reshape(batch, rows * _RESULTS, columns * _RESULTS, features)[:, : sides[0], : sides[1]]


_convolved = jax.custom_vjp(_by_products, nondiff_argnums=(2,))


def _forward(x: Array, kernel: Array, padding: _Padding) -> tuple[Array, tuple[Array, Array]]:
    return _convolved(x, kernel, padding), (x, kernel)


def _backward(padding: _Padding, residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    """Transforms the maps again, instead of keeping what the products read."""
    x, kernel = residuals
    (above, below), (left, right) = padding
    around = ((2 - above, 2 - below), (2 - left, 2 - right))
    of_x = _convolved(gradient, kernel[::-1, ::-1].swapaxes(2, 3), around)
    _, pull = jax.vjp(lambda kernel: _by_products(x, kernel, padding), kernel)
    return of_x, pull(gradient)[0]


_convolved.defvjp(_forward, _backward)


def _padded(x: Array, padding: Iterable[tuple[int, int]]) -> Array:
    """Adds zeros on the sides of maps, or takes places away where a number is negative."""
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((low, high, 0) for low, high in padding), (0, 0, 0)])


def _input(d: list[Array]) -> list[Array]:
    """Transforms four neighbouring values of the input, Bᵀ of Eq. 7."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _output(m: list[Array]) -> list[Array]:
    """Transforms four products to two neighbouring results, Aᵀ of Eq. 7."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]
