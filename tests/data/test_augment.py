import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import golden, in_names, nhwc

from jaxprune.data import augment as aug

GOLDEN = golden("mim/losses_mixup_bn")
LABELS, CLASSES = jnp.asarray(GOLDEN["labels"], jnp.int32), GOLDEN["logits"].shape[1]
(SMOOTHING,) = in_names(GOLDEN, r"ls_ce_(.*)")


def test_normalize_uses_the_constants_of_imagenet():
    images = jnp.arange(12, dtype=jnp.uint8).reshape(1, 2, 2, 3) * 20
    expected = (np.asarray(images) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    chex.assert_trees_all_close(aug.normalize(images), expected.astype(np.float32), atol=1e-6)


@pytest.mark.parametrize("tenths", in_names(GOLDEN, r"mixup_target_lam(\d+)"))
def test_mixup_targets_and_their_loss_match_timm(tenths):
    target = aug.mixup_target(LABELS, CLASSES, int(tenths) / 10, float(SMOOTHING))
    chex.assert_trees_all_close(target, GOLDEN[f"mixup_target_lam{tenths}"], atol=1e-6)
    loss = optax.softmax_cross_entropy(jnp.asarray(GOLDEN["logits"]), target).mean()
    np.testing.assert_allclose(loss, GOLDEN[f"soft_ce_lam{tenths}"], atol=1e-6)


def test_smoothed_targets_are_label_smoothing():
    images = jnp.asarray(nhwc(GOLDEN["x"]))
    options = {"num_classes": CLASSES, "label_smoothing": float(SMOOTHING)}
    same, target = aug.mixup_cutmix(jax.random.key(0), images, LABELS, 0.0, 0.0, **options)
    np.testing.assert_array_equal(same, images)
    loss = optax.softmax_cross_entropy(jnp.asarray(GOLDEN["logits"]), target).mean()
    np.testing.assert_allclose(loss, GOLDEN[f"ls_ce_{SMOOTHING}"], atol=1e-6)


def test_mixed_images_match_timm():
    images = jnp.asarray(nhwc(GOLDEN["x"]))
    for tenths in in_names(GOLDEN, r"mixup_x_lam(\d+)"):
        mixed = nhwc(GOLDEN[f"mixup_x_lam{tenths}"])
        chex.assert_trees_all_close(aug.mix_images(images, int(tenths) / 10), mixed, atol=1e-6)
    box = GOLDEN["cutmix_box"]
    chex.assert_trees_all_close(aug.cutmix_images(images, box), nhwc(GOLDEN["cutmix_x"]), atol=1e-6)
    np.testing.assert_allclose(aug.cutmix_lam(box, *images.shape[1:3]), GOLDEN["cutmix_lam"], atol=1e-6)


def test_flip_is_per_image():
    images = jnp.arange(64 * 6.0).reshape(64, 2, 3, 1)
    flipped = aug.random_flip(jax.random.key(0), images)
    was = np.all(flipped == images[:, :, ::-1], axis=(1, 2, 3))
    np.testing.assert_array_equal(flipped[~was], images[~was])
    assert 16 < was.sum() < 48


def test_erasing_fills_one_rectangle_of_the_stated_size():
    images = jnp.full((256, 16, 12, 2), 7.0)
    erased = np.array(jax.jit(aug.random_erasing, static_argnums=2)(jax.random.key(0), images, 0.5)) != 7.0
    assert np.all(erased[..., 0] == erased[..., 1])
    touched = [image[..., 0] for image in erased if image.any()]
    assert 96 < len(touched) < 160
    for image in touched:
        rows, columns = np.flatnonzero(image.any(1)), np.flatnonzero(image.any(0))
        assert image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        assert len(rows) < 16 and len(columns) < 12
    part = [image.mean() for image in touched]
    # Sides are rounded to pixels, so the area leaves [0.02, 1/3] by a little.
    assert min(part) > 0.01 and max(part) < 0.37 and 0.13 < np.mean(part) < 0.21


@pytest.mark.slow
def test_batches_are_mixed_cut_or_left_and_targets_tell_how_much():
    # Every image holds its own number, so what is left of it can be measured.
    images = jnp.broadcast_to(jnp.arange(2.0)[:, None, None, None], (2, 8, 8, 1))
    options = {"num_classes": 2, "prob": 0.8, "label_smoothing": 0.0}
    mix = jax.jit(jax.vmap(lambda key: aug.mixup_cutmix(key, images, jnp.arange(2), 0.8, 1.0, **options)))
    mixed, targets = mix(jax.random.split(jax.random.key(0), 120))
    partner = mixed[:, 0].mean((1, 2, 3))
    np.testing.assert_allclose(targets[:, 0], jnp.stack([1 - partner, partner], -1), atol=1e-5)
    blended = np.any((mixed[:, 0] > 0) & (mixed[:, 0] < 1), axis=(1, 2, 3))
    cut = ~blended & np.any(mixed[:, 0] > 0, axis=(1, 2, 3))
    # Four in ten of each; a few tiny boxes hold no pixel and count as left alone.
    assert 32 < blended.sum() < 64 and 28 < cut.sum() < 64 and 12 < (~blended & ~cut).sum() < 48


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.0, 1.0)])
def test_one_kind_alone_is_always_that_kind(mixup, cutmix):
    images = jnp.broadcast_to(jnp.arange(2.0)[:, None, None, None], (2, 8, 8, 1))
    mix = jax.jit(jax.vmap(lambda key: aug.mixup_cutmix(key, images, jnp.arange(2), mixup, cutmix, num_classes=2)[0]))
    mixed = mix(jax.random.split(jax.random.key(0), 16))
    blended = np.any((mixed > 0) & (mixed < 1), axis=(1, 2, 3, 4))
    assert np.all(blended == bool(mixup))


@pytest.mark.slow
def test_augment_composes_and_repeats_from_its_key():
    images = jnp.asarray(np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3)), jnp.uint8)
    options = {"erasing": 0.5, "mixup": 0.8, "cutmix": 1.0, "label_smoothing": 0.1, "num_classes": 5}
    full = jax.jit(lambda key: aug.augment(key, images, jnp.arange(4), **options))
    out, targets = full(jax.random.key(3))
    chex.assert_shape((out, targets), ((4, 8, 8, 3), (4, 5)))
    assert out.dtype == targets.dtype == jnp.float32
    np.testing.assert_allclose(targets.sum(-1), 1.0, rtol=1e-5)
    chex.assert_trees_all_equal((out, targets), full(jax.random.key(3)))
    assert np.any(full(jax.random.key(4))[0] != out)
    plain, hard = aug.augment(jax.random.key(3), images, jnp.arange(4), flip=False, num_classes=5)
    chex.assert_trees_all_close(plain, aug.normalize(images))
    np.testing.assert_array_equal(hard, np.eye(4, 5))


def test_several_classes_are_mixed_as_they_are():
    labels = jnp.asarray([[1, 1, 0], [0, 0, 1]], jnp.float32)
    chex.assert_trees_all_close(
        aug.mixup_target(labels, 3, 0.75), jnp.asarray([[0.75, 0.75, 0.25], [0.25, 0.25, 0.75]])
    )
