"""Pseudo labels against the published numbers, and every way to make them cheaper against the plain one."""

import json
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support import golden, nhwc, quick_compile, weights

from jaxprune import checkpoints, flops, mim
from jaxprune.errors import UserError
from jaxprune.nn.params import merge, split
from jaxprune.nn.tokens import all_present
from jaxprune.ops.patches import gather_tokens
from jaxprune.ranking.labels import (
    _Removals,
    _stand_for,
    draw_masks,
    estimated_bytes,
    pseudo_labels,
    reconstructions,
    schedule,
)

FILE = golden("ltrp_papr/ltrp_labels_24x4")
SIZES = json.loads(str(FILE["config_json"]))
COLLECTIVES = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\b")
IMAGES, NOISE = jnp.asarray(nhwc(FILE["images"])), jnp.asarray(FILE["noise"])


def published(**arguments):
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
        **arguments,
        rngs=nnx.Rngs(0),
    )
    return checkpoints.load_pretrained(model, weights(FILE, "mae/"))


MODEL = published()


def labels(images=IMAGES, noise=NOISE, model=MODEL, **options):
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
        ("mask_token", "all", "masktoken_all"),
        ("mask_token", "masked", "masktoken_masked"),
        ("attention", "all", "attnmask_all"),
        ("encoder", "masked", "encoder_excluded"),
    ],
)
def test_other_readings_match(removal, over, name):
    found = labels(removal=removal, over=over).relevance
    chex.assert_trees_all_close(np.asarray(found, np.float64), FILE[f"s_{name}_f64"], rtol=2e-4)


@pytest.mark.parametrize(
    ("images", "at_once", "parts"), [(3, 4, 1), (3, 1, 1), (1, 2, 3)], ids=["chunks", "one by one", "parts"]
)
def test_less_memory_gives_the_same_labels(images, at_once, parts):
    line = estimated_bytes(MODEL, images, at_once, 9, 27)
    assert schedule(MODEL, 3, 9, 27, memory=line)[0] == parts
    chex.assert_trees_all_close(labels(memory=line).relevance, FILE["s"], rtol=2e-4)


def test_memory_stays_within_the_line():
    parts = split(MODEL)
    for images, at_once in ((3, 9), (1, 1)):
        line = estimated_bytes(MODEL, images, at_once, 9, 27)
        options = {"mask_ratio": SIZES["mask_ratio"], "memory": line}

        def make(params, images, noise, options=options):
            return pseudo_labels(merge(parts.graph, params, parts.rest), images, noise=noise, **options)

        program = jax.jit(make, compiler_options=quick_compile())
        assert flops.temporary_bytes(program, parts.params, IMAGES, NOISE) <= line
    with pytest.raises(UserError, match=r"MiB for one removal from one image, and the line is at 0\.0625 MiB"):
        schedule(MODEL, 3, 9, 27, memory=2**16)


def test_labels_over_all_patches_count_those_that_are_left():
    masks = draw_masks(36, 3, grid=(6, 6), noise=NOISE, mask_ratio=SIZES["mask_ratio"])

    @jax.jit
    def plainly(images):
        """Without the third visible patch: MAE's own decoder, on a sequence in the order of the grid."""
        latent = MODEL.decoder_embed(MODEL.encode(images, masks.ids_keep))
        token = jnp.broadcast_to(MODEL.mask_token[...], (3, 36, latent.shape[2]))
        patches = jax.vmap(lambda t, ids, seen: t.at[ids].set(seen))(token, masks.ids_keep, latent[:, 1:])
        x = jnp.concatenate([latent[:, :1], patches], axis=1) + MODEL.decoder_pos_embed[...]
        gone = masks.ids_keep[:, 2:3]
        left = jnp.arange(35)[None, :] + (jnp.arange(35)[None, :] >= gone)

        def decode(x):
            for block in MODEL.decoder_blocks:
                x = block(all_present(x, 1))[0].x
            return MODEL.decoder_pred(MODEL.decoder_norm(x))[:, 1:]

        anchor = gather_tokens(decode(x), left)
        removed = decode(jnp.concatenate([x[:, :1], gather_tokens(x[:, 1:], left)], axis=1))
        change = jnp.abs(anchor - removed)
        return change.mean((1, 2)), change, left

    mean, change, left = plainly(IMAGES)
    chex.assert_trees_all_close(labels(over="all").relevance[:, 2], mean, rtol=2e-4)
    found = jax.jit(lambda x: reconstructions(MODEL, x, masks))(IMAGES)
    ours = gather_tokens(jnp.abs(found.removed[:, 2] - found.anchor), left)
    hidden = jnp.take_along_axis(masks.masked, left, axis=1)[:, :, None]
    chex.assert_trees_all_close(ours, change * hidden, atol=1e-5)


def test_fewer_decoded_patches_are_spread_out_and_give_nearby_labels():
    first = jnp.zeros(3, jnp.int32)
    masks = draw_masks(36, 3, grid=(6, 6), noise=NOISE, first=first, mask_ratio=0.75, throw_ratio=0.5)
    assert masks.ids_keep.shape == (3, 9) and masks.ids_decode.shape == (3, 9)
    decoded = np.zeros((3, 36), bool)
    np.put_along_axis(decoded, np.asarray(masks.ids_decode), True, axis=1)
    assert (decoded & ~np.asarray(masks.masked)).sum() == 0 and (decoded.sum(1) == 9).all()
    cheap = labels(throw_ratio=0.5, first=first)
    np.testing.assert_array_equal(cheap.ids_keep, FILE["ids_keep"])
    assert np.corrcoef(cheap.relevance.ravel(), FILE["s"].ravel())[0, 1] > 0.8
    assert (masks.sizes >= 1).all()
    chex.assert_trees_all_close(masks.sizes.sum(1), masks.masked.sum(1).astype(float))


def test_a_patch_stands_for_those_that_it_is_the_nearest_to():
    masked = np.ones(9, bool)
    masked[4] = False
    # Corners of a grid of 3 x 3 and the middle of its left side: the middle of the top is halfway between two of them.
    sizes = _stand_for(jnp.asarray(masked), jnp.array([0, 2, 3, 6, 8]), (3, 3))
    chex.assert_trees_all_close(sizes, jnp.array([1.5, 2.0, 1.0, 1.5, 2.0]))


@pytest.mark.parametrize("removal", ["delete", "mask_token", "attention", "encoder"])
@pytest.mark.parametrize("over", ["masked", "all"])
def test_a_patch_that_stands_for_two_is_as_good_as_two(removal, over):
    masks = draw_masks(36, 3, grid=(6, 6), noise=NOISE, mask_ratio=SIZES["mask_ratio"])
    ids, sizes = masks.ids_decode[:, :6], jnp.array([[2.0, 1, 1, 3, 1, 2]] * 3)
    twice = jnp.repeat(ids, jnp.array([2, 1, 1, 3, 1, 2]), axis=1, total_repeat_length=10)

    @jax.jit
    def change(images):
        numbers, kind = jnp.arange(9), {"removal": removal, "over": over}
        once = _Removals(MODEL, images, masks.ids_keep, ids, sizes, **kind).change(numbers)
        return once, _Removals(MODEL, images, masks.ids_keep, twice, None, **kind).change(numbers)

    chex.assert_trees_all_close(*change(IMAGES), rtol=1e-4)


def test_half_precision_gives_nearly_the_same_labels():
    found = labels(model=published(dtype=jnp.bfloat16)).relevance
    assert found.dtype == jnp.float32
    assert np.corrcoef(found.ravel(), FILE["s"].ravel())[0, 1] > 0.98


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"removal": "delet"}, "Did you mean 'delete'"),
        ({"over": "most"}, "Choose one of: all, masked"),
        ({"throw_ratio": 0.75}, "leaves none of the 27 masked patches"),
        ({"throw_ratio": 0.5}, "first="),
        ({"mask_ratio": 0.99}, "patches visible"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda: pseudo_labels(MODEL, IMAGES, noise=NOISE, **{"mask_ratio": 0.75, **options}))


@pytest.mark.eight_devices
def test_no_device_waits_for_another():
    images, noise = jnp.tile(IMAGES[:1], (16, 1, 1, 1)), jnp.tile(NOISE[:1], (16, 1))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    spread = jax.device_put((images, noise), NamedSharding(mesh, PartitionSpec("data")))
    parts = split(MODEL)
    params = jax.device_put(parts.params, NamedSharding(mesh, PartitionSpec()))
    # One image at a time on every device, two removals of it.
    line = estimated_bytes(MODEL, 1, 2, 9, 27)
    for options in ({}, {"memory": line, "shards": 8}, {"throw_ratio": 0.5, "first": jnp.zeros(16, jnp.int32)}):

        @jax.jit
        def make(params, images, noise, options=options):
            mae = merge(parts.graph, params, parts.rest)
            return pseudo_labels(mae, images, noise=noise, mask_ratio=SIZES["mask_ratio"], **options).relevance

        program = make.lower(params, *spread).compile()
        assert not COLLECTIVES.findall(program.as_text())
        if "first" not in options:
            chex.assert_trees_all_close(program(params, *spread)[::5], jnp.tile(FILE["s"][:1], (4, 1)), rtol=2e-4)
