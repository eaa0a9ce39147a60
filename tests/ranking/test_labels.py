"""Pseudo labels against the published numbers, and every way to make them cheaper against the plain one."""

import functools
import json
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support import golden, golden_names, nhwc, perturbed, quick_compile, weights

from jaxprune import checkpoints, flops, mim
from jaxprune.errors import UserError
from jaxprune.mim import RandomMasker
from jaxprune.nn.params import merge, split
from jaxprune.nn.tokens import all_present
from jaxprune.ops.patches import gather_tokens
from jaxprune.ranking.budget import estimated_bytes, fit_memory
from jaxprune.ranking.labels import pseudo_labels, reconstructions, require_order
from jaxprune.ranking.masks import label_masks, stand_for
from jaxprune.ranking.removals import REMOVALS

FILE = golden(golden_names("ltrp_papr/ltrp_labels_*")[0])
SIZES = json.loads(str(FILE["config_json"]))
COLLECTIVES = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\b")
IMAGES, NOISE = jnp.asarray(nhwc(FILE["images"])), jnp.asarray(FILE["noise"])
B, VISIBLE = FILE["ids_keep"].shape
MASKED = NOISE.shape[1] - VISIBLE


@functools.cache
def mae():
    model = mim.create(
        "mae",
        img_size=SIZES["img"],
        patch_size=SIZES["patch"],
        embed_dim=SIZES["E"],
        depth=SIZES["depth"],
        num_heads=SIZES["heads"],
        mlp_ratio=float(SIZES["mlp_ratio"]),
        decoder_embed_dim=SIZES["DE"],
        decoder_depth=SIZES["ddepth"],
        decoder_num_heads=SIZES["dheads"],
        norm_pix_loss=False,
        rngs=nnx.Rngs(0),
    )
    return checkpoints.load_pretrained(model, weights(FILE, "mae/"))


# Numbers that no file knows, for what holds on the whole.
SMALL = {"img_size": 24, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0}
SMALL |= {"decoder_embed_dim": 24, "decoder_depth": 2, "decoder_num_heads": 3, "norm_pix_loss": False}
SMALL_IMAGES = jax.random.normal(jax.random.key(0), (3, 24, 24, 3))
SMALL_NOISE = jax.random.uniform(jax.random.key(1), (3, 36))


@functools.cache
def small_mae(dtype=None):
    return perturbed(mim.create("mae", **SMALL, dtype=dtype, rngs=nnx.Rngs(0)))


def draw():
    masker = RandomMasker((SIZES["img"] // SIZES["patch"],) * 2, SIZES["mask_ratio"], 0.0)
    return label_masks(masker.draw(B, noise=NOISE), masker.grid)


def labels(images=IMAGES, noise=NOISE, model=None, **options):
    model = model or mae()
    options = {"mask_ratio": SIZES["mask_ratio"], **options}
    make = jax.jit(
        lambda images, noise: pseudo_labels(model, images, noise=noise, **options), compiler_options=quick_compile()
    )
    return make(images, noise)


def test_labels_match():
    found = labels()
    np.testing.assert_array_equal(found.ids_keep, FILE["ids_keep"])
    np.testing.assert_array_equal(found.masked, FILE["mask"].astype(bool))
    chex.assert_trees_all_close(found.relevance, FILE["s"], rtol=2e-4)
    chex.assert_trees_all_close(np.asarray(found.relevance, np.float64), FILE["s_f64"], rtol=2e-4)


@pytest.mark.parametrize(
    ("removal", "over", "name"),
    [
        pytest.param("mask_token", "all", "masktoken_all", marks=pytest.mark.slow),
        ("mask_token", "masked", "masktoken_masked"),
        ("attention", "all", "attnmask_all"),
        ("encoder", "masked", "encoder_excluded"),
    ],
)
def test_other_readings_match(removal, over, name):
    found = labels(removal=removal, over=over).relevance
    chex.assert_trees_all_close(np.asarray(found, np.float64), FILE[f"s_{name}_f64"], rtol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("images", "at_once", "parts"), [(B, 4, 1), (B, 1, 1), (1, 2, B)], ids=["chunks", "one by one", "parts"]
)
def test_less_memory_gives_the_same_labels(images, at_once, parts):
    line = estimated_bytes(mae().decoder, images, at_once, VISIBLE, MASKED)
    assert fit_memory(mae().decoder, B, VISIBLE, MASKED, memory=line)[0] == parts
    chex.assert_trees_all_close(labels(memory=line).relevance, FILE["s"], rtol=2e-4)


def test_devices_share_a_batch_as_evenly_as_it_goes():
    decoder = small_mae().decoder
    line = lambda images, at_once: estimated_bytes(decoder, images, at_once, 9, 27)
    fit = lambda batch, shards, memory: fit_memory(decoder, batch, 9, 27, memory=memory, shards=shards)
    assert fit(8, 4, line(2, 9)) == (1, 9) and fit(8, 4, line(1, 1)) == (2, 1)
    # Two of four devices have two images of six; parts are whole numbers of images.
    assert fit(6, 4, line(2, 9)) == (1, 9) and fit(6, 4, line(1, 1)) == (2, 1)
    assert fit(5, 4, line(2, 9)) == (1, 9) and fit(5, 4, line(1, 1)) == (5, 1)


@pytest.mark.slow
def test_memory_stays_within_the_line():
    parts = split(small_mae())
    for images, at_once in ((3, 9), (1, 1)):
        line = estimated_bytes(small_mae().decoder, images, at_once, 9, 27)
        options = {"mask_ratio": 0.75, "memory": line}

        def make(params, images, noise, options=options):
            return pseudo_labels(merge(parts.graph, params, parts.rest), images, noise=noise, **options)

        program = jax.jit(make, compiler_options=quick_compile())
        assert flops.temporary_bytes(program, parts.params, SMALL_IMAGES, SMALL_NOISE) <= line
    with pytest.raises(UserError, match=r"MiB for one removal from one image, and memory is limited to 0\.0625 MiB"):
        fit_memory(small_mae().decoder, 3, 9, 27, memory=2**16)


def in_grid_order(model, latent, ids_keep):
    """The decoder's input with every patch, in the order of the grid."""
    decoder, prefix = model.decoder, model.encoder.num_prefix_tokens
    x = decoder.embed(latent)
    token = jnp.broadcast_to(decoder.mask_token[...], (len(x), model.num_patches, x.shape[2]))
    patches = jax.vmap(lambda t, ids, seen: t.at[ids].set(seen))(token, ids_keep, x[:, prefix:])
    return jnp.concatenate([x[:, :prefix], patches], axis=1) + decoder.pos_embed[...]


def decode(model, x):
    """One call of the whole decoder."""
    prefix = model.encoder.num_prefix_tokens
    for block in model.decoder.blocks:
        x = block(all_present(x, prefix))[0].x
    return model.decoder.head(x)[:, prefix:]


def encode(model, images, ids_keep):
    embedded = model.encoder.embed(images, ids_keep)
    return model.encoder.final_norm(model.encoder.encode(embedded, ids_keep).tokens.x)


def without_one(model, images, ids_keep, number):
    """(anchor, reconstruction, the patches that both have) without a visible patch, by whole calls of the decoder."""
    prefix, patches = model.encoder.num_prefix_tokens, model.num_patches
    x = in_grid_order(model, encode(model, images, ids_keep), ids_keep)
    gone = ids_keep[:, number : number + 1]
    left = jnp.arange(patches - 1)[None, :] + (jnp.arange(patches - 1)[None, :] >= gone)
    removed = decode(model, jnp.concatenate([x[:, :prefix], gather_tokens(x[:, prefix:], left)], axis=1))
    return gather_tokens(decode(model, x), left), removed, left


@pytest.mark.slow
def test_labels_over_all_patches_count_those_that_are_left():
    model, masks = mae(), draw()
    anchor, removed, left = jax.jit(lambda images: without_one(model, images, masks.ids_keep, 2))(IMAGES)
    change = jnp.abs(anchor - removed)
    chex.assert_trees_all_close(labels(over="all").relevance[:, 2], change.mean((1, 2)), rtol=2e-4)
    found = jax.jit(lambda x: reconstructions(model, x, masks))(IMAGES)
    ours = gather_tokens(jnp.abs(found.removed[:, 2] - found.anchor), left)
    hidden = jnp.take_along_axis(masks.masked, left, axis=1)[:, :, None]
    chex.assert_trees_all_close(ours, change * hidden, atol=1e-5)
    chex.assert_trees_all_close(found.change, labels().relevance, rtol=1e-5)


AUTOENCODERS = {
    "two prefix tokens and LayerScale": {"reg_tokens": 1, "init_values": 0.5},
    "no prefix token": {"class_token": False},
}


@functools.cache
def unlike_mae(which):
    sizes = {"img_size": SIZES["img"], "patch_size": SIZES["patch"], "embed_dim": 16, "depth": 2, "num_heads": 2}
    decoder = {"decoder_embed_dim": 16, "decoder_depth": 2, "decoder_num_heads": 2}
    return perturbed(mim.create("mae", **sizes, **decoder, **AUTOENCODERS[which], rngs=nnx.Rngs(0)))


@pytest.mark.slow
@pytest.mark.parametrize("which", AUTOENCODERS)
def test_labels_equal_the_plain_loop_of_decoder_calls(which):
    model, masks = unlike_mae(which), draw()

    @jax.jit
    def plainly(images):
        def change(number):
            anchor, removed, left = without_one(model, images, masks.ids_keep, number)
            masked = jnp.take_along_axis(masks.masked, left, axis=1)
            change = jnp.abs(anchor - removed).mean(2)
            return (change * masked).sum(1) / masked.sum(1), change.mean(1)

        return tuple(jnp.stack(rows, axis=1) for rows in zip(*map(change, range(VISIBLE)), strict=True))

    of_masked, of_all = plainly(IMAGES)
    chex.assert_trees_all_close(labels(model=model).relevance, of_masked, rtol=2e-4)
    chex.assert_trees_all_close(labels(model=model, over="all").relevance, of_all, rtol=2e-4)
    # To the masked tokens a hidden token is one that is not there.
    chex.assert_trees_all_close(labels(model=model, removal="attention").relevance, of_masked, rtol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("which", AUTOENCODERS)
def test_other_readings_equal_plain_decoder_calls(which):
    model, masks, prefix = unlike_mae(which), draw(), unlike_mae(which).encoder.num_prefix_tokens

    @jax.jit
    def plainly(images):
        """The mask token in place of the third visible patch; and that patch hidden in the encoder."""
        ids = masks.ids_keep
        x = in_grid_order(model, encode(model, images, ids), ids)
        token = model.decoder.mask_tokens(ids[:, 2:3], x.dtype)
        place = prefix + ids[:, 2]
        replaced = jax.vmap(lambda row, p, t: row.at[p].set(t[0]))(x, place, token)
        others = encode(model, images, jnp.delete(ids, 2, axis=1))
        alone = model.encoder.embed(images, ids)[:, prefix + 2 : prefix + 3]
        for block in model.encoder.blocks:
            alone = block.feed(block.mix(alone, jnp.zeros_like(alone)))
        latent = jnp.insert(others, prefix + 2, model.encoder.final_norm(alone)[:, 0], axis=1)
        hidden = in_grid_order(model, latent, ids)
        anchor, weights = decode(model, x), masks.masked / masks.masked.sum(1, keepdims=True)
        return [(jnp.abs(decode(model, y) - anchor).mean(2) * weights).sum(1) for y in (replaced, hidden)]

    for removal, expected in zip(("mask_token", "encoder"), plainly(IMAGES), strict=True):
        chex.assert_trees_all_close(labels(model=model, removal=removal).relevance[:, 2], expected, rtol=2e-4)


@pytest.mark.slow
def test_fewer_decoded_patches_are_spread_out_and_give_nearby_labels():
    first, masker = jnp.zeros(3, jnp.int32), RandomMasker((6, 6), 0.75, 0.5)
    masks = label_masks(masker.draw(3, noise=SMALL_NOISE, first=first), masker.grid)
    assert masks.ids_keep.shape == (3, 9) and masks.ids_decode.shape == (3, 9)
    decoded = np.zeros((3, 36), bool)
    np.put_along_axis(decoded, np.asarray(masks.ids_decode), True, axis=1)
    assert (decoded & ~np.asarray(masks.masked)).sum() == 0 and (decoded.sum(1) == 9).all()
    cheap, whole = (
        labels(SMALL_IMAGES, SMALL_NOISE, small_mae(), mask_ratio=0.75, **options)
        for options in ({"throw_ratio": 0.5, "first": first}, {})
    )
    np.testing.assert_array_equal(cheap.ids_keep, whole.ids_keep)
    assert np.corrcoef(cheap.relevance.ravel(), whole.relevance.ravel())[0, 1] > 0.8
    assert (masks.sizes >= 1).all()
    chex.assert_trees_all_close(masks.sizes.sum(1), masks.masked.sum(1).astype(float))


def test_a_patch_stands_for_those_that_it_is_the_nearest_to():
    masked = np.ones(9, bool)
    masked[4] = False
    # Corners of a grid of 3 x 3 and the middle of its left side: the middle of the top is halfway between two of them.
    sizes = stand_for(jnp.asarray(masked), jnp.array([0, 2, 3, 6, 8]), (3, 3))
    chex.assert_trees_all_close(sizes, jnp.array([1.5, 2.0, 1.0, 1.5, 2.0]))


@pytest.mark.slow
@pytest.mark.parametrize("removal", REMOVALS)
@pytest.mark.parametrize("over", ["masked", "all"])
def test_a_patch_that_stands_for_two_is_as_good_as_two(removal, over):
    model, masks = mae(), draw()
    ids, sizes = masks.ids_decode[:, :6], jnp.array([[2.0, 1, 1, 3, 1, 2]] * B)
    twice = jnp.repeat(ids, jnp.array([2, 1, 1, 3, 1, 2]), axis=1, total_repeat_length=10)

    @jax.jit
    def change(images):
        numbers = jnp.arange(VISIBLE)
        once, repeated = masks._replace(ids_decode=ids, sizes=sizes), masks._replace(ids_decode=twice, sizes=None)
        return [REMOVALS[removal](model, images, m, over=over).change(numbers) for m in (once, repeated)]

    chex.assert_trees_all_close(*change(IMAGES), rtol=1e-4)


@pytest.mark.slow
def test_half_precision_gives_nearly_the_same_labels():
    full, half = (
        labels(SMALL_IMAGES, SMALL_NOISE, small_mae(dtype), mask_ratio=0.75) for dtype in (None, jnp.bfloat16)
    )
    assert half.relevance.dtype == jnp.float32
    assert np.corrcoef(half.relevance.ravel(), full.relevance.ravel())[0, 1] > 0.98


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"removal": "delet"}, "Did you mean 'delete'"),
        ({"metric": "l2"}, "Did you mean 'l1'"),
        ({"metric": "ssim"}, "use removal='attention'"),
        ({"over": "most"}, "Choose one of: all, masked"),
        ({"throw_ratio": 0.75}, "would throw 27 of the 27 patches"),
        ({"throw_ratio": 0.5}, "first="),
        ({"mask_ratio": 0.99}, "patches visible"),
    ],
)
def test_bad_settings_are_refused(options, message):
    model = small_mae()
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda: pseudo_labels(model, SMALL_IMAGES, noise=SMALL_NOISE, **{"mask_ratio": 0.75, **options}))


def test_one_visible_patch_has_no_order():
    require_order(36, 0.944)
    with pytest.raises(UserError, match=r"leaves 1 of 36 patches visible.*: use 0\.944 or less"):
        require_order(36, 0.97)


@pytest.mark.eight_devices
def test_no_device_waits_for_another():
    images, noise = jnp.tile(IMAGES[:1], (16, 1, 1, 1)), jnp.tile(NOISE[:1], (16, 1))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    spread = jax.device_put((images, noise), NamedSharding(mesh, PartitionSpec("data")))
    parts = split(mae())
    params = jax.device_put(parts.params, NamedSharding(mesh, PartitionSpec()))
    # One image at a time on every device, two removals of it.
    line = estimated_bytes(mae().decoder, 1, 2, VISIBLE, MASKED)
    for options in ({}, {"memory": line, "shards": 8}, {"throw_ratio": 0.5, "first": jnp.zeros(16, jnp.int32)}):

        @jax.jit
        def make(params, images, noise, options=options):
            mae = merge(parts.graph, params, parts.rest)
            return pseudo_labels(mae, images, noise=noise, mask_ratio=SIZES["mask_ratio"], **options).relevance

        program = make.lower(params, *spread).compile()
        assert not COLLECTIVES.findall(program.as_text())
        if "first" not in options:
            chex.assert_trees_all_close(program(params, *spread)[::5], jnp.tile(FILE["s"][:1], (4, 1)), rtol=2e-4)
