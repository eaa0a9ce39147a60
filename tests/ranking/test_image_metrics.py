"""Metrics of whole reconstructions against SciPy's filters, and the labels that they make."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.ndimage import gaussian_filter
from support import perturbed, quick_compile

from jaxprune import mim
from jaxprune.ops.patches import unpatchify
from jaxprune.ranking import pseudo_labels
from jaxprune.ranking.image_metrics import dissimilarity, negative_psnr
from jaxprune.ranking.masks import label_masks

IMAGES = np.random.default_rng(0).normal(size=(2, 3, 24, 20, 3))


def filtered(x):
    """Gaussian means of windows of 11 pixels, of one channel."""
    return gaussian_filter(x, 1.5, truncate=3.5)[5:-5, 5:-5]


def test_ssim_has_the_windows_and_constants_of_its_paper():
    first, second = IMAGES
    for a, b, found in zip(first, second, dissimilarity(*jnp.asarray(IMAGES, jnp.float32)), strict=True):
        peak, values = max(np.ptp(a), np.ptp(b)), []
        for x, y in zip(np.moveaxis(a, -1, 0), np.moveaxis(b, -1, 0), strict=True):
            m, n = filtered(x), filtered(y)
            v, w, cov = filtered(x * x) - m * m, filtered(y * y) - n * n, filtered(x * y) - m * n
            c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
            values.append((2 * m * n + c1) * (2 * cov + c2) / ((m * m + n * n + c1) * (v + w + c2)))
        np.testing.assert_allclose(found, 1 - np.mean(values), rtol=1e-4)


def test_ssim_has_all_digits_on_accelerators():
    """Their convolutions round the factors by default, and variances are differences of nearly equal means."""
    image = jax.ShapeDtypeStruct((1, 16, 16, 3), jnp.float32)
    with jax.default_matmul_precision("default"):
        jaxpr = jax.make_jaxpr(dissimilarity)(image, image)
    precisions = re.findall(r"conv_general_dilated\[.*?precision=(.*?)\n", str(jaxpr), re.DOTALL)
    assert set(precisions) == {"(Precision.HIGHEST, Precision.HIGHEST)"}


def test_psnr_is_in_decibels_of_the_second_image():
    first, second = IMAGES[0], IMAGES[1] + 5
    found = negative_psnr(jnp.asarray(first, jnp.float32), jnp.asarray(second, jnp.float32))
    peak = np.maximum(second.max((1, 2, 3)), 0) - np.minimum(second.min((1, 2, 3)), 0)
    np.testing.assert_allclose(
        found, -20 * np.log10(peak / np.sqrt(((first - second) ** 2).mean((1, 2, 3)))), rtol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "compare"), [pytest.param("ssim", dissimilarity, marks=pytest.mark.slow), ("psnr", negative_psnr)]
)
def test_labels_compare_whole_images(metric, compare):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    decoder = {"decoder_embed_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2}
    model = perturbed(mim.create("mae", **sizes, **decoder, rngs=nnx.Rngs(0)))
    images = jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
    noise = jax.random.uniform(jax.random.key(1), (2, 16))

    def expected():
        """By whole calls of the decoder, the mask token in place of each visible patch."""
        masks = label_masks(mim.RandomMasker((4, 4), 0.75, 0.0).draw(2, noise=noise), (4, 4))
        ids, prefix = masks.ids_keep, model.encoder.num_prefix_tokens
        encoded = model.encoder.encode(model.encoder.embed(images, ids), ids)
        x = model.decoder.embed(model.encoder.final_norm(encoded.tokens.x))
        token = jnp.broadcast_to(model.decoder.mask_token[...], (2, 16, x.shape[2]))

        def image(seen, present):
            patches = jax.vmap(lambda t, i, s: t.at[i].set(s))(token, present, seen)
            rows = jnp.concatenate([x[:, :prefix], patches], axis=1) + model.decoder.pos_embed[...]
            for block in model.decoder.blocks:
                rows = block.run(rows)
            return unpatchify(model.decoder.head(rows)[:, prefix:], 4, (4, 4))

        seen, columns = x[:, prefix:], []
        for number in range(ids.shape[1]):
            without = image(jnp.delete(seen, number, axis=1), jnp.delete(ids, number, axis=1))
            columns.append(compare(image(seen, ids), without))
        return jnp.stack(columns, axis=1)

    options = {"noise": noise, "mask_ratio": 0.75, "removal": "mask_token", "metric": metric}
    both = jax.jit(
        lambda: (pseudo_labels(model, images, **options).relevance, expected()), compiler_options=quick_compile()
    )
    found, plainly = both()
    chex.assert_trees_all_close(found, plainly, rtol=1e-3, atol=1e-5)
