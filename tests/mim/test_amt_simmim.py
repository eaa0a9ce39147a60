"""AMT on SimMIM: how blocks are drawn, and that it is SimMIM, which golden numbers pin, under the masks so drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import quickly

from jaxprune import mim
from jaxprune.errors import UserError
from jaxprune.mim.parts.weighted_masker import WeightedMasker

SMALL = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "mask_patch": 8}


def create(name="amt_simmim", **changes):
    return mim.create(name, **{**SMALL, **changes}, rngs=nnx.Rngs(0))


def test_blocks_weigh_what_their_patches_do_together():
    masker = WeightedMasker((2, 6), num_visible=4, num_retained=4, block=(2, 2), mask_tokens=True)
    # The last block weighs most, though its patches do so one by one only together; the first nothing.
    weights = jnp.array([[0, 0, 5, 0, 3, 3, 0, 0, 0, 0, 3, 3]], jnp.float32)
    masks = masker.draw(1, weights=weights, noise=jnp.full((1, 3), 0.5))
    blocks = lambda last, middle, first: [first, first, middle, middle, last, last] * 2
    np.testing.assert_array_equal(masks.retained[0], blocks(True, False, False))
    np.testing.assert_array_equal(masks.thrown[0], blocks(False, True, False))
    np.testing.assert_array_equal(masks.ids_keep[0], [0, 1, 4, 5, 6, 7, 10, 11])
    np.testing.assert_array_equal(masks.ids_present, masks.ids_keep)
    np.testing.assert_array_equal(masks.ids_restore[0], [0, 1, 8, 9, 2, 3, 4, 5, 10, 11, 6, 7])
    # Of the order of the draw, one number is a block.
    given = masker.draw(1, ids_shuffle=jnp.array([[1, 0, 2]]))
    np.testing.assert_array_equal(given.retained[0], blocks(False, True, False))
    np.testing.assert_array_equal(given.thrown[0], blocks(False, False, True))


def test_the_counts_are_whole_blocks():
    sizes = {"img_size": 224, "patch_size": 16, "embed_dim": 16, "num_heads": 1, "depth": 1, "mask_patch": 32}
    abstract = lambda **options: nnx.eval_shape(lambda: create(**sizes, **options))
    counts = lambda masker: tuple(x // 4 for x in (masker.num_retained, masker.num_masked, masker.num_visible))
    amt = abstract()
    assert amt.reconstruction == "partial" and counts(amt.masker) == (22, 34, 15)
    assert counts(amt.warmup_masker) == (22, 22, 27)  # ceil(49 · .44) of 49
    # The ratios of AMT's repository, of which a square map of 12x12 tokens stays.
    assert counts(abstract(amt_throw_ratio=0.26).masker) == (22, 35, 14)
    assert counts(abstract(reconstruction="full").masker) == (34, 34, 15)
    assert counts(abstract(reconstruction="progressive", throw_ratio=0.5).masker) == (9, 34, 15)
    assert counts(abstract(warmup_mask_ratio=0.6).warmup_masker) == (30, 30, 19)


@pytest.mark.slow
@pytest.mark.parametrize("reconstruction", ["full", "partial", "progressive"])
def test_it_is_simmim_under_the_masks_that_attention_draws(reconstruction):
    images, key = jax.random.normal(jax.random.key(1), (2, 32, 32, 3)), jax.random.key(0)
    amt = create(reconstruction=reconstruction)
    loss, aux = quickly(amt, lambda model, images: model(images, key=key))(images)
    assert (amt.masker.num_retained, amt.masker.num_visible) == ((48, 16) if reconstruction == "full" else (32, 16))
    thrown = 48 - amt.masker.num_retained
    assert aux.token_weights is not None and aux.thrown.sum() == 2 * thrown
    ratio = {} if reconstruction == "full" else {"throw_ratio": thrown / 64}
    base = create("simmim", reconstruction=reconstruction, mask_ratio=0.75, **ratio)
    given = {"mask": np.asarray(aux.masked)} | ({"retained": np.asarray(aux.retained)} if thrown else {})
    same, expected = quickly(base, lambda model, images: model(images, **given))(images)
    np.testing.assert_allclose(loss, same, rtol=1e-6)
    np.testing.assert_allclose(aux.pred, expected.pred, atol=1e-6)


@pytest.mark.slow
def test_a_warm_up_is_exactly_simmim():
    images, key = jax.random.normal(jax.random.key(1), (2, 32, 32, 3)), jax.random.key(0)
    expected = quickly(create("simmim", mask_ratio=0.44), lambda model, images: model(images, key=key)[0])(images)
    loss, aux = quickly(create(), lambda model, images: model(images, key=key, warmup=True))(images)
    assert loss == expected and aux.token_weights is None and not aux.thrown.any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_ratio": 0.6, "amt_throw_ratio": 0.4}, "leave at least one visible"),
        ({"throw_ratio": 0.9}, "throw_ratio 0.9 would throw 15"),
        ({"reconstruction": "full", "throw_ratio": 0.4}, "reconstruction='progressive'"),
        ({"encoder": "swin"}, "encoder"),
        ({"refresh_epochs": 0}, "refresh_epochs=0"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        create(**arguments)
