"""Networks to compare a plan with: the same weights at another size."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import quickly

from jaxprune import checkpoints, dense, mim, models, reduction
from jaxprune.checkpoints.run import backbone
from jaxprune.errors import UserError
from jaxprune.nn.params import variables
from jaxprune.open.rivals import abstract_rival, at_shares, is_rival, is_smaller_images, rival, size_text
from jaxprune.ops.posembed import resample
from jaxprune.ops.resize import resize
from jaxprune.reduction import Plan

SIZES = {"patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}


def test_a_segmentation_network_at_another_size_has_its_weights_and_resampled_positions():
    model = dense.create("fcn", encoder="vit", num_classes=3, features=8, img_size=(48, 64), **SIZES, rngs=nnx.Rngs(0))
    small = rival(model, size_text((24, 40)))
    assert small.preprocessing.img_size == (24, 40) and small.encoder.grid == (3, 5)
    before, after = variables(model), variables(small)
    for name in before.keys() - {"encoder.pos_embed"}:
        np.testing.assert_array_equal(after[name][...], before[name][...], err_msg=name)
    positions = resample(model.encoder.pos_embed[...], (6, 8), (3, 5), 1, antialias=False)
    np.testing.assert_allclose(after["encoder.pos_embed"][...], positions, atol=1e-6)
    assert nnx.eval_shape(small, jnp.zeros((2, 24, 40, 3))).shape == (2, 24, 40, 3)
    assert abstract_rival(model, (24, 40)).encoder.grid == (3, 5)


@pytest.mark.slow
def test_windows_with_relative_positions_keep_their_tables_at_another_size(tmp_path):
    sizes = {**SIZES, "img_size": 48, "pretrain_img_size": 32, "window_size": 2}
    model = dense.create("linear", encoder="vitdet", num_classes=3, **sizes, rngs=nnx.Rngs(0))
    checkpoints.save_model(model, tmp_path / "network.safetensors")
    for small in (rival(model, "img_size=32"), checkpoints.load_model(tmp_path / "network.safetensors", img_size=32)):
        assert small.encoder.grid == (4, 4) and small.preprocessing.img_size == (32, 32)
        before, after = variables(model), variables(small)
        assert all(np.array_equal(after[name][...], before[name][...]) for name in before)
        assert rival(small, "img_size=24").encoder.grid == (3, 3)


def call(model, images):
    logits, aux = model(images)
    return logits, aux.kept


def test_a_rival_follows_a_plan_behind_the_stroke():
    model = models.create("vit", img_size=32, **SIZES, num_classes=3, rngs=nnx.Rngs(0))
    fast, images = rival(model, "img_size=24/topk@1:keep_rate=0.5"), jnp.linspace(-1, 1, 2 * 24 * 24 * 3)
    images = images.reshape(2, 24, 24, 3)
    logits, kept = quickly(fast, call)(images)
    plain = reduction.apply(rival(model, "img_size=24"), Plan.from_text("topk@1:keep_rate=0.5"))
    expected, _ = quickly(plain, call)(images)
    np.testing.assert_array_equal(logits, expected)
    assert kept[0].shape == (2, 4) and model.plan is None
    assert is_rival("img_size=24/topk@1:keep_rate=0.5") and not is_smaller_images("img_size=24/topk@1:keep_rate=0.5")
    with pytest.raises(UserError, match="topc"):
        rival(model, "img_size=24/topc")


TINY = {"embed_dim": 8, "depth": 1, "num_heads": 2, "num_classes": 0}
CLIPS = {"name": "videomae_small_patch16_224", "img_size": 32, "num_frames": 4, **TINY}


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ({"name": "vit", "img_size": 24, "patch_size": (4, 6), "in_chans": 1, **TINY}, (4, 6, 1)),
        (CLIPS | {"patch_size": 4}, (2, 4, 4, 3)),
    ],
    ids=["one channel", "tubelets"],
)
def test_patches_of_any_sides_are_embedded_alike_on_a_larger_scale(arguments, size):
    model = models.create(**arguments, rngs=nnx.Rngs(0))
    coarse, (rows, columns, channels) = rival(model, "patch_size=8"), size[-3:]
    patches = np.random.default_rng(0).normal(size=(5, *size)).astype(np.float32)
    larger = resize(jnp.asarray(patches.reshape(-1, rows, columns, channels)), (8, 8), "bilinear").reshape(1, 5, -1)
    expected, found = model.patch_embed.proj(jnp.asarray(patches.reshape(1, 5, -1))), coarse.patch_embed.proj(larger)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_as_many_pixels_in_other_rows_are_another_patch():
    model = models.create("vit", img_size=(12, 36), patch_size=(3, 12), **TINY, rngs=nnx.Rngs(0))
    kernel = np.repeat([3.0, 6.0, 9.0], 12 * 3)[:, None] * np.ones((1, 8), np.float32)
    model.patch_embed.proj.kernel[...] = kernel
    found = np.asarray(rival(model, "patch_size=6").patch_embed.proj.kernel[...]).reshape(6, 6, 3, 8)
    # All columns weigh the same still, and the lower rows the most.
    np.testing.assert_allclose(found, np.broadcast_to(found[:, 2:3, :1, :1], found.shape), rtol=0.2)
    assert found[4:].mean() > found[2:4].mean() > found[:2].mean()


def test_changes_that_there_are_not():
    model = dense.create("linear", encoder="vit", num_classes=3, img_size=32, **SIZES, rngs=nnx.Rngs(0))
    for change in ("img_size=0", "img_size=8x", "patch_size=4x4", "width=3"):
        with pytest.raises(UserError, match="rival"):
            rival(model, change)
    with pytest.raises(UserError, match="no last block for the head"):
        rival(model, "depth=1")
    alone = models.create("vit", img_size=32, **SIZES, rngs=nnx.Rngs(0))
    assert rival(alone, "img_size=16x24").grid == (2, 3)


def test_a_pretrained_encoder_has_rivals(tmp_path):
    sizes = {"decoder_embed_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2}
    encoder = backbone(mim.create("mae", img_size=32, **SIZES, **sizes, rngs=nnx.Rngs(0)))
    rivals = at_shares(encoder, (0.5,))
    assert list(rivals) == ["img_size=24", "depth=1"] and len(rivals["depth=1"].blocks) == 1
    checkpoints.save_model(rivals["img_size=24"], tmp_path / "small.safetensors")
    again = checkpoints.load_model(tmp_path / "small.safetensors")
    assert again.preprocessing.sides == (24, 24) and again.grid == (3, 3)


def test_the_encoder_of_a_segmentation_network_has_rivals():
    model = dense.create("fcn", encoder="vit", num_classes=3, features=8, img_size=32, **SIZES, rngs=nnx.Rngs(0))
    assert rival(backbone(model), "img_size=24").grid == (3, 3)
