"""How much two reconstructions of an image differ, as alternatives to the mean absolute difference of LTRP's labels.

The repository of LTRP has them beside it, on whole images and with torchmetrics' defaults.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_SIGMA, _RADIUS = 1.5, 5  # of SSIM's Gaussian window, in pixels
_K1, _K2 = 0.01, 0.03


def dissimilarity(first: Float[Array, "b H W c"], second: Float[Array, "b H W c"]) -> Float[Array, "b"]:
    """1 - SSIM of two images (Wang et al., 2004): Gaussian windows of 11 pixels that lie inside the image.

    The range of the pixels is the larger range of the two images.
    """
    span = lambda x: x.max((1, 2, 3)) - x.min((1, 2, 3))
    peak = jnp.maximum(span(first), span(second))[:, None, None, None]
    c1, c2 = (_K1 * peak) ** 2, (_K2 * peak) ** 2
    mean_a, mean_b = _window_means(first), _window_means(second)
    var_a, var_b = _window_means(first**2) - mean_a**2, _window_means(second**2) - mean_b**2
    covariance = _window_means(first * second) - mean_a * mean_b
    same = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    return 1 - (same / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))).mean((1, 2, 3))


def negative_psnr(first: Float[Array, "b H W c"], second: Float[Array, "b H W c"]) -> Float[Array, "b"]:
    """Minus the peak signal-to-noise ratio in decibels; the range of the pixels is that of the second image and 0."""
    axes = (1, 2, 3)
    peak = jnp.maximum(second.max(axes), 0) - jnp.minimum(second.min(axes), 0)
    return 10 * jnp.log10(((first - second) ** 2).mean(axes) / peak**2)


def _window_means(x: Float[Array, "b H W c"]) -> Float[Array, "b h w c"]:
    """Gaussian means of the windows inside an image."""
    weights = np.exp(-(np.arange(-_RADIUS, _RADIUS + 1) ** 2) / (2 * _SIGMA**2))
    weights = jnp.asarray(weights / weights.sum(), jnp.float32)
    b, height, width, c = x.shape
    planes = jnp.moveaxis(x, -1, 1).reshape(b * c, 1, height, width)
    for kernel in (weights[None, None, :, None], weights[None, None, None, :]):
        # Variances are differences of nearly equal means.
        planes = jax.lax.conv(planes, kernel, (1, 1), "VALID", precision=jax.lax.Precision.HIGHEST)
    return jnp.moveaxis(planes.reshape(b, c, *planes.shape[2:]), 1, -1)


# By the name of the metric.
METRICS: dict[str, Callable[[Array, Array], Array]] = {"ssim": dissimilarity, "psnr": negative_psnr}
