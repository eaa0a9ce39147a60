"""How strong each corruption is at each severity: what it does to test images, against the published settings.

The settings are those of the scripts that made ImageNet-C and CIFAR-10-C (github.com/hendrycks/robustness, `create_c`).
None of them is read from the package: what follows from a setting is computed here, and measured on corrupted images.
"""

import io

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from jaxprune.data.corruptions import NAMES, SEVERITIES, Corruption

# By corruption: the five settings of ImageNet-C, and those of CIFAR-10-C, for images below 64 pixels.
PUBLISHED = {
    "gaussian_noise": ((0.08, 0.12, 0.18, 0.26, 0.38), (0.04, 0.06, 0.08, 0.09, 0.1)),
    "shot_noise": ((60, 25, 12, 5, 3), (500, 250, 100, 75, 50)),
    "impulse_noise": ((0.03, 0.06, 0.09, 0.17, 0.27), (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": (
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    ),
    "glass_blur": (
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    ),
    "motion_blur": (((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)), ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": (
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    ),
    "snow": ((0.8, 0.7, 0.7, 0.65, 0.55), (0.95, 0.9, 0.9, 0.85, 0.8)),
    "frost": (
        ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    ),
    "fog": ((1.5, 2, 2.5, 2.5, 3), (0.2, 0.5, 0.75, 1, 1.5)),
    "brightness": ((0.1, 0.2, 0.3, 0.4, 0.5), (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": ((0.4, 0.3, 0.2, 0.1, 0.05), (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": (
        ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": ((0.6, 0.5, 0.4, 0.3, 0.25), (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": ((25, 18, 15, 10, 7), (80, 65, 58, 50, 40)),
}
LEVEL = 1 / 255  # of an 8-bit image
LARGE, SMALL = 224, 32  # sides at which lengths are the published ones
SAMPLES = 60_000  # pixels of a small image that is long enough for statistics


def flat(value, small, height=None):
    """A grey image; a small one is long and narrow."""
    shape = (height or SAMPLES // SMALL, SMALL) if small else (LARGE, LARGE)
    return np.full((*shape, 3), value, np.uint8)


def noise(small):
    return np.random.default_rng(3).integers(0, 256, flat(0, small, SMALL).shape).astype(np.uint8)


def edge(small, axis=1):
    """Black, then white."""
    image = flat(0, small)
    image = image if axis == 1 or not small else image.transpose(1, 0, 2)
    np.moveaxis(image, axis, 0)[image.shape[axis] // 2 :] = 255
    return image


def moments(image, axis=1):
    """Mean place and variance of what a blur has made of an `edge`: those of its kernel along the axis, in pixels."""
    profile = image[..., 0].mean(1 - axis)
    weights, places = np.diff(profile), np.arange(len(profile) - 1) - (len(profile) // 2 - 1)
    mean = (weights * places).sum() / weights.sum()
    return mean, (weights * (places - mean) ** 2).sum() / weights.sum()


def gaussian_noise(corrupted, scale, small):
    normal = stats.norm.ppf((np.arange(10_000) + 0.5) / 10_000)
    expected = np.clip(128 * LEVEL + scale * normal, 0, 1).std()
    assert corrupted(flat(128, small)).std() == pytest.approx(expected, rel=0.02)


def shot_noise(corrupted, photons, small):
    counts = np.arange(stats.poisson.ppf(1 - 1e-12, photons))
    chances, values = stats.poisson.pmf(counts, photons * 64 * LEVEL), np.minimum(counts / photons, 1)
    expected = np.sqrt(chances @ values**2 - (chances @ values) ** 2)
    assert corrupted(flat(64, small)).std() == pytest.approx(expected, rel=0.02)


def impulse_noise(corrupted, share, small):
    image = corrupted(flat(128, small))
    black, white = (image == 0).mean(), (image == 1).mean()
    assert black + white == pytest.approx(share, rel=0.05) and white == pytest.approx(share / 2, rel=0.07)


def defocus_blur(corrupted, setting, small):
    radius, smooth = setting
    reach = np.arange(-10, 11)
    rows = np.broadcast_to(reach[:, None], (21, 21))[np.hypot(reach[:, None], reach) <= radius]
    taps = np.exp(-(reach**2) / (2 * smooth**2))
    expected = (rows**2).mean() + (taps * reach**2).sum() / taps.sum()
    assert moments(corrupted(edge(small)))[1] == pytest.approx(expected, rel=0.03)


def glass_blur(corrupted, setting, small):
    sigma, reach, times = setting
    taps = np.exp(-(np.arange(-9, 10) ** 2) / (2 * sigma**2))
    smoothed = (taps * np.arange(-9, 10) ** 2).sum() / taps.sum()
    # A value moves by up to `reach` in either direction each time.
    expected = 2 * smoothed + times * ((2 * reach + 1) ** 2 - 1) / 12
    variance = np.mean([moments(corrupted(edge(small), seed))[1] for seed in range(4)])
    assert variance == pytest.approx(expected, rel=0.03)


def motion_blur(corrupted, setting, small):
    radius, sigma = setting
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    across, down = (moments(corrupted(edge(small, axis)), axis)[0] for axis in (1, 0))
    assert np.hypot(across, down) == pytest.approx((weights * steps).sum() / weights.sum(), rel=0.03)


def zoom_blur(corrupted, setting, small):
    image = flat(0, small, SMALL)
    side = len(image)
    middle = slice(side // 4, side - side // 4)
    image[middle, middle] = 255
    factors = np.arange(1, *setting)
    expected = (1 + factors.sum()) / (1 + len(factors)) * (side - 2 * (side // 4))
    assert corrupted(image)[side // 2, :, 0].sum() == pytest.approx(expected, abs=0.1)


def snow(corrupted, weight, small):
    # Where no flake falls, a black image is a little paler.
    assert corrupted(flat(0, small)).min() == pytest.approx((1 - weight) * 0.5, abs=LEVEL)


def frost(corrupted, setting, small):
    black, grey = corrupted(flat(0, small, SMALL)), corrupted(flat(40, small, SMALL))
    assert black.max() == pytest.approx(setting[1], abs=LEVEL)
    assert (grey - black).mean() == pytest.approx(setting[0] * 40 * LEVEL, abs=0.3 * LEVEL)


def fog(corrupted, thickness, small):
    # The side is a power of two, so that the whole field of fog is seen, from none to the thickest.
    side = SMALL if small else 256
    image = corrupted(np.full((side, side, 3), 255, np.uint8))
    assert image.min() == pytest.approx(1 / (1 + thickness), abs=LEVEL) and image.max() == pytest.approx(1, abs=LEVEL)


def brightness(corrupted, added, small):
    assert corrupted(flat(60, small)).mean() == pytest.approx(60 * LEVEL + added, abs=LEVEL)


def contrast(corrupted, share, small):
    image = noise(small)
    changed = corrupted(image)
    assert changed.std((0, 1)) == pytest.approx(share * image.std((0, 1)) * LEVEL, rel=0.02)
    assert changed.mean((0, 1)) == pytest.approx(image.mean((0, 1)) * LEVEL, abs=LEVEL)


def pixelate(corrupted, share, small):
    image = corrupted(noise(small))
    for axis in (0, 1):
        differ = np.diff(image, axis=axis).any(axis=(1 - axis, 2))
        assert 1 + differ.sum() == int(len(image) * share)


def jpeg_compression(corrupted, quality, small):
    def written(quality):
        file = io.BytesIO()
        Image.fromarray(noise(small)).save(file, "JPEG", quality=quality)
        return np.asarray(Image.open(file)) * LEVEL

    image = corrupted(noise(small))
    alike = [near for near in (quality - 1, quality, quality + 1) if np.allclose(image, written(near))]
    assert alike == [quality]


def elastic_transform(corrupted, setting, small):
    side = SMALL if small else 128  # all lengths are relative to it
    alpha, sigma, affine = (part * side for part in setting)
    levels = 255 / (side - 1)  # from pixel to pixel of a ramp
    places = np.stack([*np.indices((side, side)), np.ones((side, side))], axis=-1)
    ramps = [np.repeat((places[..., [axis]] * levels).round().astype(np.uint8), 3, axis=2) for axis in (0, 1)]
    centre = np.array([side // 2, side // 2])
    field = alpha / (np.sqrt(12 * np.pi) * sigma) if sigma else 0  # of uniform noise that a Gaussian has smoothed
    # Far enough from the border, beyond which images are mirrored.
    half = max(side // 5, side // 2 - int(3 * affine + 4 * field))
    middle, lag = slice(side // 2 - half, side // 2 + half), max(1, min(round(2 * sigma), half // 2))
    inside, moved, bends = places[middle, middle], [], []
    for seed in range(24):
        # Where each pixel was taken from, (row, column): an affine map of its place, and the field.
        sources = [corrupted(ramp, seed)[middle, middle, 0] / (LEVEL * levels) for ramp in ramps]
        sources = np.stack(sources, axis=-1)
        solved = np.linalg.lstsq(inside.reshape(-1, 3), sources.reshape(-1, 2), rcond=None)[0]
        moved.append((centre - solved[2]) @ np.linalg.inv(solved[:2]) - centre)
        bends.append(sources[2 * lag :] - 2 * sources[lag:-lag] + sources[: -2 * lag])
    # The centre is halfway between two of the three points that the affine map moves, each uniformly.
    assert np.std(moved) == pytest.approx(affine / np.sqrt(6), rel=0.15)
    alike = lambda lags: np.exp(-((lags * lag / sigma) ** 2) / 4)
    expected = field**2 * (6 - 8 * alike(1) + 2 * alike(2)) if sigma else 0
    rounding = 6 / 12 * 2 / levels**2  # of the ramps, and of the corrupted images
    assert np.square(bends).mean() - rounding == pytest.approx(expected, rel=0.2, abs=0.8 * rounding)


MEASURES = (
    gaussian_noise,
    shot_noise,
    impulse_noise,
    defocus_blur,
    glass_blur,
    motion_blur,
    zoom_blur,
    snow,
    frost,
    fog,
)
MEASURES += (brightness, contrast, elastic_transform, pixelate, jpeg_compression)


def test_every_corruption_is_measured():
    assert tuple(measure.__name__ for measure in MEASURES) == NAMES == tuple(PUBLISHED)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("small", [False, True], ids=["imagenet", "cifar"])
@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.__name__)
def test_a_corruption_is_as_strong_as_published(measure, small, severity):
    corruption = Corruption(measure.__name__, severity)
    corrupted = lambda image, seed=0: corruption(image, np.random.default_rng(seed)).astype(float) * LEVEL
    measure(corrupted, PUBLISHED[measure.__name__][small][severity - 1], small)
