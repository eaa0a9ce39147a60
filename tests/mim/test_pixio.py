"""Pixio's recipe on MAE: masked blocks, positions that the decoder learns, and what PR-MIM saves of a deep decoder."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import quick_compile, quickly

from jaxprune import checkpoints, main, mim
from jaxprune.errors import UserError
from jaxprune.mim.parts.random_blocks import RandomBlocks
from jaxprune.nn.params import merge, split, variables
from jaxprune.weights.rules import to_published

CONFIG = Path(__file__).parents[2] / "configs/mim/pixio.py"
SMALL = {
    "img_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depth": 1,
    "num_heads": 2,
    "decoder_embed_dim": 16,
    "decoder_depth": 2,
    "decoder_num_heads": 2,
}
PIXIO = {"mask_patch": 8, "reg_tokens": 2, "pos_embed": "learn", "decoder_pos_embed": "learn"}


def expected_order(noise, blocks, block):
    """The patches in the order of their blocks' noise, and in raster order within a block."""
    rows, columns = blocks[0] * block[0], blocks[1] * block[1]
    patches = np.arange(rows * columns).reshape(blocks[0], block[0], blocks[1], block[1])
    of_blocks = patches.transpose(0, 2, 1, 3).reshape(blocks[0] * blocks[1], -1)
    return of_blocks[np.argsort(noise)].reshape(-1)


@pytest.mark.parametrize(("grid", "block", "mask_ratio"), [((8, 8), (2, 2), 0.75), ((6, 9), (2, 3), 0.6)])
def test_blocks_are_visible_as_a_whole(grid, block, mask_ratio):
    masker = RandomBlocks(grid, mask_ratio, block=block)
    blocks = grid[0] // block[0], grid[1] // block[1]
    visible = int(blocks[0] * blocks[1] * (1 - mask_ratio)) * block[0] * block[1]
    assert masker.num_visible == visible and masker.num_retained == grid[0] * grid[1] - visible
    noise = jax.random.uniform(jax.random.key(0), (3, blocks[0] * blocks[1]))
    masks = masker.draw(3, noise=noise)
    for row, ids, ranks, masked in zip(noise, masks.ids_keep, masks.ids_restore, masks.masked, strict=True):
        order = expected_order(row, blocks, block)
        np.testing.assert_array_equal(ids, order[:visible])
        np.testing.assert_array_equal(ranks, np.argsort(order))
        np.testing.assert_array_equal(np.flatnonzero(~masked), np.sort(order[:visible]))


def test_single_patches_are_drawn_as_by_mae():
    single, plain = RandomBlocks((8, 8), 0.75, 0.5), mim.RandomMasker((8, 8), 0.75, 0.5)
    for drawn, expected in zip(*(masker.draw(2, key=jax.random.key(3)) for masker in (single, plain)), strict=True):
        np.testing.assert_array_equal(drawn, expected)


@pytest.mark.slow
def test_everything_learns_under_pr_mim_too():
    model = mim.create("mae", **SMALL, **PIXIO, reconstruction="progressive", throw_ratio=0.5, rngs=nnx.Rngs(0))
    parts = split(model)
    images = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))

    def loss(params):
        loss, aux = merge(parts.graph, params, parts.rest)(images, key=jax.random.key(1))
        return loss, aux

    (value, aux), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=quick_compile())(
        parts.params
    )
    assert np.isfinite(value) and {"decoder.pos_embed", "encoder.pos_embed", "encoder.reg_token"} <= gradients.keys()
    assert all(np.abs(gradient).max() > 0 for gradient in gradients.values())
    np.testing.assert_array_equal(aux.masked.sum(1), [48, 48])
    np.testing.assert_array_equal(aux.thrown.sum(1), [32, 32])
    blocks = np.asarray(aux.masked).reshape(2, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(2, 16, 4)
    assert (blocks.all(2) | ~blocks.any(2)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mae", "mff"])
def test_drop_path_is_on_only_in_training(name):
    make = lambda rate: mim.create(name, **{**SMALL, "depth": 3}, drop_path_rate=rate, rngs=nnx.Rngs(0))
    images, key = jax.random.normal(jax.random.key(0), (4, 32, 32, 3)), jax.random.key(1)
    train = lambda model, key: quickly(model, lambda model, images, key: model.training_loss(images, key))(images, key)
    evaluate = lambda model, key: quickly(model, lambda model, images, key: model(images, key=key)[0])(images, key)
    still, dropping = make(0.0), make(0.5)
    assert train(still, key) == evaluate(still, key) == evaluate(dropping, key)
    assert train(dropping, key) == train(dropping, key) != evaluate(dropping, jax.random.split(key)[0])


def test_learned_positions_are_saved_with_the_weights():
    model, new = (mim.create("mae", **SMALL, **PIXIO, rngs=nnx.Rngs(seed)) for seed in (0, 1))
    assert model.decoder.pos_embed.shape == (1, 67, 16)
    checkpoints.load_pretrained(new, to_published(model))
    for name, variable in variables(new).items():
        np.testing.assert_array_equal(variable[...], variables(model)[name][...], err_msg=name)


@pytest.mark.slow
# Measured here; the share of a full forward pass at 256 pixels.
@pytest.mark.parametrize(("size", "share"), [("base", 0.588), ("large", 0.716), ("huge", 0.806)])
def test_pr_mim_saves_most_of_a_deep_decoder(size, share):
    def total(method):
        arguments = main.load_config(f"{CONFIG}:size={size},method={method}").mim.to_dict()
        return nnx.eval_shape(lambda: mim.create(**arguments, rngs=nnx.Rngs(0))).flops().total

    assert total("prmim") / total("pixio") == pytest.approx(share, abs=5e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_patch": 6}, "choose a multiple of patch_size"),
        ({"mask_patch": 20}, "mask_patch divides"),
        ({"decoder_pos_embed": "rope"}, "decoder_pos_embed"),
        ({"mask_patch": 32}, "of 1 patches visible"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        mim.create("mae", **SMALL, **arguments, rngs=nnx.Rngs(0))


def test_the_patches_to_decode_may_be_passed():
    masker, noise = RandomBlocks((4, 4), 0.75, 0.5, block=(2, 2)), jnp.arange(4.0)[None]
    retained = jnp.arange(16)[None] >= 12
    masks = masker.draw(1, noise=noise, retained=retained)
    np.testing.assert_array_equal(masks.retained, retained)
    np.testing.assert_array_equal(masks.ids_present, [[0, 1, 4, 5, 12, 13, 14, 15]])


def test_noise_has_one_number_per_block():
    with pytest.raises(UserError, match="16 numbers per image instead of 4"):
        RandomBlocks((4, 4), 0.75, block=(2, 2)).draw(1, noise=jnp.zeros((1, 16)))
