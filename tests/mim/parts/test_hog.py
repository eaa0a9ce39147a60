"""Histograms of oriented gradients against LocalMIM's and MaskFeat's numbers, and how they are drawn."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import golden, nhwc

from jaxprune.errors import UserError
from jaxprune.mim.parts.hog import HOG, MaskFeatHOG, gaussian_window, hog_levels, image_gradients
from jaxprune.ops.patches import unpatchify

FILE = golden("mim/localmim_hog")


def histograms(image):
    """The published histograms of a golden image: by number of bins, by side of a cell, ascending."""
    _, channels, height, width = FILE[f"img_{image}"].shape
    by_bins = {}
    for values in (FILE[name] for name in FILE if name.startswith(f"{image}/nbins")):
        cell = math.isqrt(height * width // values.shape[1])
        by_bins.setdefault(values.shape[2] // channels, {})[cell] = values
    return [pytest.param(bins, dict(sorted(by_cell.items())), id=f"{bins} bins") for bins, by_cell in by_bins.items()]


@pytest.mark.parametrize(("bins", "published"), histograms("dyadic"))
def test_localmim_matches(bins, published):
    images = jnp.asarray(nhwc(FILE["img_dyadic"]))
    levels = jax.jit(lambda images: hog_levels(images, [(cell, cell) for cell in published], bins))(images)
    for (cell, expected), level in zip(published.items(), levels, strict=True):
        chex.assert_trees_all_close(level, expected, atol=1e-6, rtol=0)
        chex.assert_trees_all_close(jax.jit(HOG((cell, cell), num_bins=bins))(images), expected, atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("bins", "published"), histograms("gauss"))
def test_localmim_matches_inside_of_any_image(bins, published):
    images = jnp.asarray(nhwc(FILE["img_gauss"]))
    b, height, width, _ = images.shape
    gradients = jnp.stack([gradient[..., 0] for gradient in image_gradients(images)], axis=1)
    chex.assert_trees_all_close(gradients, FILE["gauss/gxy_ch0"], atol=2e-6, rtol=0)
    for cell, expected in published.items():
        # At the border one difference is nearly 0, and the bin is a matter of rounding.
        grid = (height // cell, width // cell)
        inner = lambda values, grid=grid: values.reshape(b, *grid, -1)[:, 1:-1, 1:-1]
        found = inner(HOG((cell, cell), num_bins=bins)(images))
        chex.assert_trees_all_close(found, inner(expected), atol=1e-6, rtol=0)


def test_maskfeat_matches():
    file = golden("mim/maskfeat_hog")
    images = jnp.asarray(nhwc(file["img"]))
    side, size = math.isqrt(file["hog"].shape[1]), len(file["gaussian_kernel"])
    cell = (images.shape[1] // side,) * 2
    values = file["hog"].shape[2]
    options = {"cell": cell, "num_bins": values // images.shape[3], "in_chans": images.shape[3]}
    chex.assert_trees_all_close(gaussian_window(size), file["gaussian_kernel"], atol=1e-8, rtol=0)
    for name, window in (("hog", size), ("hog_no_gauss", None)):
        found = jax.jit(MaskFeatHOG(cell, window=window, **options))(images)
        chex.assert_trees_all_close(found, file[name], atol=1e-6, rtol=0)
    # Larger patches have the same cells: (channel, bin, row, column) of each.
    each = next(count for count in range(2, side + 1) if side % count == 0)
    target = MaskFeatHOG((each * cell[0],) * 2, window=size, **options)
    patches = jax.jit(target)(images).reshape(-1, side // each, side // each, values, each, each)
    assert target.size == values * each**2
    cells = file["hog"].reshape(-1, side // each, each, side // each, each, values).transpose(0, 1, 3, 5, 2, 4)
    chex.assert_trees_all_close(patches, cells, atol=1e-6, rtol=0)


def test_gradients_may_be_biased():
    images = jax.random.normal(jax.random.key(0), (1, 8, 8, 2))
    bias, (across, down) = (0.3, -1.5), (np.asarray(each, np.float64) for each in image_gradients(images))
    across, down = across + bias[0], down + bias[1]
    bins = np.floor(np.arctan2(across, down) / np.pi * 5).astype(int) % 5
    sizes = np.where(bins[..., None] == np.arange(5), np.hypot(across, down)[..., None], 0)
    expected = sizes.reshape(1, 2, 4, 2, 4, 2, 5).mean((2, 4))
    expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    found = hog_levels(images, [(4, 4)], 5, [jnp.asarray(bias)])[0]
    np.testing.assert_allclose(found, expected.reshape(1, 4, 10), atol=1e-5)


@pytest.mark.slow
def test_sides_of_a_patch_may_differ():
    images = jax.random.normal(jax.random.key(0), (2, 16, 24, 3))
    target = HOG((8, 12), (4, 6), num_bins=5, in_chans=3)
    fine = HOG((4, 6), num_bins=5)(images).reshape(2, 2, 2, 2, 2, 15)
    expected = fine.transpose(0, 1, 3, 5, 2, 4).reshape(2, 4, target.size)
    chex.assert_trees_all_close(target(images), expected, atol=1e-6)


@pytest.mark.parametrize("target", [HOG((16, 16)), pytest.param(MaskFeatHOG((16, 16)), marks=pytest.mark.slow)])
def test_strokes_run_along_edges(target):
    row, column = np.mgrid[:32, :32]
    for edge, across in ((column > 7.5, 0), (row > 7.5, 1), (row > column, 2), (row + column > 31, 3)):
        images = jnp.asarray(np.repeat(edge[None, :, :, None], 3, 3), jnp.float32)
        drawn = unpatchify(target.to_pixels(target(images), images), (16, 16), (2, 2))[0, :, :, 0]
        assert drawn.min() == 0 and drawn.max() == pytest.approx(1, abs=0.1)
        # What changes least from pixel to pixel is the direction along the edge.
        inner = np.asarray(drawn)
        steps = [(1, 0), (0, 1), (1, 1), (1, -1)]
        change = [np.abs(inner - np.roll(inner, step, (0, 1)))[2:-2, 2:-2].sum() for step in steps]
        assert int(np.argmin(change)) == across


@pytest.mark.slow
def test_a_flat_image_has_no_gradient():
    images = jnp.full((1, 16, 16, 3), 0.3)
    target = HOG((8, 8))
    assert not target(images).any()
    np.testing.assert_allclose(target.to_pixels(target(images), images), 0.3, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HOG((16, 16), (5, 5)), "cells of 5x5"),
        (lambda: HOG((16, 16), num_bins=0), "num_bins=0"),
        (lambda: HOG((16, 16))(jnp.zeros((1, 24, 16, 3))), "use images of 32x16"),
        (lambda: MaskFeatHOG((8, 8))(jnp.zeros((1, 24, 32, 3))), "windows of HOG: use images of 32x32"),
    ],
)
def test_bad_sizes_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
