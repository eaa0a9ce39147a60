"""SimMIM, and PR-MIM on top of it, against the published numbers."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import (
    assert_gradients,
    golden,
    golden_names,
    nhwc,
    quick_compile,
    quickly,
    ratio_of,
    slow_but,
    weights,
)

from jaxprune import checkpoints, main, mim, models
from jaxprune.errors import UserError
from jaxprune.mim.parts.block_masker import BlockMasker, default_mask_patch
from jaxprune.nn.params import merge, split, variables
from jaxprune.open import at, convert, initialise
from jaxprune.ops.patch_sampling import furthest_sampling_host
from jaxprune.train.optimizer import decay_mask
from jaxprune.weights.rules import to_published

PATTERN = ("relative_position_index", "attn_mask")  # what files hold besides, and is computed here


def vit(name, ignored=("agg.*",), **arguments):
    file = golden(name)
    sizes = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "mask_patch")
    learned, block, shared = file["flags"]
    model = mim.create(
        "simmim",
        encoder="vit",
        **dict(zip(sizes, file["cfg"].tolist(), strict=True)),
        mask_ratio=float(file["mask_ratio"]),
        pos_embed="learn" if learned else "none",
        rel_pos="block" if block else "shared" if shared else "none",
        **arguments,
        rngs=nnx.Rngs(0),
    )
    return file, checkpoints.load_pretrained(model, weights(file), ignored=ignored)


SWIN_FILE = "mim/simmim_swin"


def swin(**arguments):
    file = golden(SWIN_FILE)
    sizes = dict(zip(("img_size", "patch_size", "embed_dim", "window_size"), file["cfg"].tolist(), strict=True))
    model = mim.create(
        "simmim",
        encoder="swin",
        **sizes,
        depths=tuple(file["depths"].tolist()),
        num_heads=tuple(file["heads"].tolist()),
        mlp_ratio=float(file["mlp_ratio"]),
        mask_patch=sizes["patch_size"],  # masks are given
        **arguments,
        rngs=nnx.Rngs(0),
    )
    return file, checkpoints.load_pretrained(model, weights(file))


def run(model, file, **given):
    """Loss and output."""
    return quickly(model, lambda model, images: model(images, **given))(jnp.asarray(nhwc(file["imgs"])))


def gradients(model, file, **given):
    """The loss, its output and its gradients."""
    parts = split(model)

    def loss(params):
        return merge(parts.graph, params, parts.rest)(jnp.asarray(nhwc(file["imgs"])), **given)

    program = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=quick_compile())
    found, grads = program(parts.params)
    return *found, grads


def assert_output(file, loss, aux):
    chex.assert_trees_all_close(aux.z.transpose(0, 3, 1, 2), file["z"], atol=5e-5, rtol=0)
    chex.assert_trees_all_close(aux.rec.transpose(0, 3, 1, 2), file["rec"], atol=5e-5, rtol=0)
    chex.assert_trees_all_close(loss, file["loss"], rtol=1e-5)
    np.testing.assert_array_equal(aux.mask, file["mask"].astype(bool))


SLOW = pytest.mark.slow
VITS = golden_names("mim/simmim_vit_*")
# One with a table of relative positions for all blocks, which throws tokens too, is quick.
SHARED = next(name for name in VITS if golden(name)["flags"][2] and "pr/retained" in golden(name))


@pytest.mark.parametrize("name", slow_but([SHARED], VITS))
def test_a_vit_matches(name):
    file, model = vit(name)
    loss, aux, grads = gradients(model, file, mask=file["mask"])
    assert_output(file, loss, aux)
    assert_gradients(split(model), grads, file, "grad/")


def test_a_swin_matches():
    file, model = swin()
    assert_output(file, *run(model, file, mask=file["mask"]))


THROWING = [name for name in VITS if "pr/retained" in golden(name)]
PR_CASES = [
    pytest.param(name, mode, marks=[] if (name, mode) == (SHARED, "thrown") else SLOW)
    for name in THROWING
    for mode in ("thrown", "all", "residual")
]


def throw_ratio(name):
    thrown = golden(name)["pr/thrown"]
    return ratio_of(int(thrown[0].sum()), thrown.shape[1])


def starts(file):
    """Where furthest sampling began in each image of a file, which does not say so."""
    chosen = []
    for masked, retained in zip(file["mask"].astype(bool), file["pr/retained"].astype(bool), strict=True):
        places, count = np.flatnonzero(masked), int(retained.sum())
        picks = (furthest_sampling_host(masked.ravel(), first, count, masked.shape) for first in range(len(places)))
        chosen.append(next(first for first, order in enumerate(picks) if retained[places[order]].all()))
    return chosen


@pytest.mark.parametrize(("name", "aggregation"), PR_CASES)
def test_progressive_reconstruction_matches(name, aggregation):
    options = {"reconstruction": "progressive", "throw_ratio": throw_ratio(name), "aggregation": aggregation}
    file, model = vit(name, (), **options)
    given = {"first": jnp.asarray(starts(file))} if aggregation == "thrown" else {"retained": file["pr/retained"]}
    loss, aux = run(model, file, mask=file["mask"], **given)
    chex.assert_trees_all_close(loss, file[f"pr/agg_{aggregation}/loss"], rtol=1e-5)
    chex.assert_trees_all_close(aux.enc_out_kept, file["pr/enc_out_kept"], atol=5e-5, rtol=0)
    np.testing.assert_array_equal(aux.retained, file["pr/retained"].astype(bool))
    np.testing.assert_array_equal(aux.thrown, file["pr/thrown"].astype(bool))
    if aggregation == "thrown":
        expected = file["pr/agg_thrown/rec"]
        chex.assert_trees_all_close(aux.rec[: len(expected)].transpose(0, 3, 1, 2), expected, atol=5e-5, rtol=0)


@SLOW
@pytest.mark.parametrize("name", THROWING)
def test_partial_reconstruction_matches(name):
    file, model = vit(name, reconstruction="partial", throw_ratio=throw_ratio(name))
    loss, aux = run(model, file, mask=file["mask"], retained=file["pr/retained"])
    chex.assert_trees_all_close(loss, file["pr/plain/loss"], rtol=1e-5)
    assert not np.asarray(aux.pred)[np.asarray(aux.thrown)].any()


@SLOW
def test_nothing_thrown_is_exactly_simmim():
    file, full = vit(SHARED)
    _, progressive = vit(SHARED, (), reconstruction="progressive", throw_ratio=0.0)
    (loss, aux), (other, other_aux) = (run(model, file, mask=file["mask"]) for model in (full, progressive))
    chex.assert_trees_all_equal((loss, aux.rec), (other, other_aux.rec))


SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "mask_patch": 16}
SWIN = {"img_size": 32, "patch_size": 4, "embed_dim": 8, "depths": (1, 2), "num_heads": (1, 2), "window_size": 4}


def create(**changes):
    small = {**SWIN, "mask_patch": 16} if changes.get("encoder") == "swin" else SMALL
    return mim.create("simmim", **{**small, **changes}, rngs=nnx.Rngs(0))


@SLOW
def test_masks_may_be_of_any_number_of_patches():
    model, images = create(), jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    mask = np.zeros((2, 16), bool)
    mask[0, 3:5] = mask[1, 1:9] = True
    call = quickly(model, lambda model, images, mask: model(images, mask=mask))
    loss, aux = call(images, jnp.asarray(mask))
    hidden = np.kron(mask.reshape(2, 4, 4), np.ones((8, 8), bool))[..., None]
    error = np.abs(np.asarray(aux.rec) - np.asarray(images))
    np.testing.assert_allclose(loss, (error * hidden).sum() / (3 * hidden.sum()), rtol=1e-5)
    # What is under a mask token is not seen.
    again = call(jnp.where(hidden, 7.0, images), jnp.asarray(mask))[1]
    chex.assert_trees_all_equal(again.rec, aux.rec)


def test_the_key_draws_blocks():
    masker = BlockMasker((6, 4), (3, 2), mask_ratio=0.4, throw_ratio=0.3)
    assert (masker.blocks, masker.num_masked, masker.num_thrown, masker.num_retained) == ((2, 2), 12, 7, 5)
    masks = masker.draw(3, key=jax.random.key(0))
    blocks = np.asarray(masks.masked).reshape(3, 2, 3, 2, 2)
    assert (blocks.sum((1, 2, 3, 4)) == 12).all() and set(blocks.sum((2, 4)).ravel().tolist()) == {0, 6}
    np.testing.assert_array_equal(masks.retained.sum(1), [5] * 3)
    np.testing.assert_array_equal(np.sort(masks.ids_restore, axis=1), np.tile(np.arange(24), (3, 1)))
    for ids, restore, thrown in zip(masks.ids_keep, masks.ids_restore, masks.thrown, strict=True):
        assert (np.diff(ids) > 0).all() and not thrown[ids].any() and thrown.sum() == 7
        np.testing.assert_array_equal(restore[ids], np.arange(17))
    noise = jnp.asarray([[0.1, 0.4, 0.2, 0.3]])
    masked = masker.draw(1, noise=noise, first=jnp.asarray([0])).masked.reshape(6, 4)
    np.testing.assert_array_equal(masked[::3, ::2], [[False, True], [False, True]])


def test_what_is_passed_to_the_masker_must_fit():
    masker, mask = BlockMasker((2, 4), mask_ratio=0.5, throw_ratio=0.25), np.eye(2, 8) + np.eye(2, 8, 2) > 0
    for given, message in (
        ({}, "pass key="),
        ({"mask": mask}, "pass key="),
        ({"mask": mask[:, :4], "first": jnp.zeros(2, int)}, "mask has shape"),
        ({"mask": mask | (np.arange(2) == 0)[:, None], "first": jnp.zeros(2, int)}, "between 2 and 8"),
        ({"mask": np.eye(2, 8), "first": jnp.zeros(2, int)}, "mask has 1 patches per image, of which .* throws 2"),
        ({"mask": mask, "retained": mask}, "mask has 2 patches per image, of which throw_ratio=0.25 throws 2"),
        ({"mask": mask ^ True, "retained": mask}, "retained has 2 patches per image instead of 4"),
        ({"noise": jnp.zeros((2, 3)), "first": jnp.zeros(2, int)}, "pass one number per block"),
    ):
        with pytest.raises(UserError, match=message):
            masker.draw(2, **given)


@pytest.mark.parametrize(
    ("img_size", "patch_size", "expected"),
    [
        ((224, 224), (16, 16), (32, 32)),
        ((192, 192), (4, 4), (32, 32)),
        ((224, 224), (14, 14), (28, 28)),
        ((32, 32), (4, 4), (16, 16)),
        ((32, 32), (8, 8), (16, 16)),
        ((48, 48), (16, 16), (16, 16)),
        ((32, 96), (8, 4), (32, 32)),
        ((40, 24), (8, 8), (8, 8)),
        ((128, 128), (64, 64), (64, 64)),
        ((16, 40), (8, 20), (8, 20)),
    ],
)
def test_default_blocks_fit_small_images(img_size, patch_size, expected):
    assert default_mask_patch(img_size, patch_size, 0.6) == expected
    masker = create(img_size=img_size, patch_size=patch_size, mask_patch=None).masker
    assert 0 < masker.num_visible < masker.num_patches


def test_starts_are_indices_into_masked_patches():
    masker, mask = BlockMasker((2, 4), mask_ratio=0.5, throw_ratio=0.25), np.tile(np.arange(8) > 3, (2, 1))
    for first in (-1, 4):
        starts = jnp.asarray([0, first])
        with pytest.raises(UserError, match=f"first={first} is not an index into the 4 masked patches"):
            masker.draw(2, mask=mask, first=starts)
        with pytest.raises(UserError, match="from 0 to 3"):
            jax.jit(lambda noise, starts=starts: masker.draw(2, noise=noise, first=starts))(jnp.zeros((2, 8)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_ratio": 0.8}, "leaves none of 4 blocks visible"),
        ({"mask_patch": 12}, "mask_patch 12x12 is not a whole number of patches"),
        ({"mask_patch": 24}, "not a whole number of blocks"),
        ({"reconstruction": "progressive", "throw_ratio": 0.7}, "throw_ratio 0.7 would throw"),
        ({"throw_ratio": 0.3}, "reconstruction='progressive'"),
        ({"rel_pos": "shard"}, "Did you mean 'shared'"),
        ({"encoder": "swin", "reconstruction": "progressive"}, "a Swin needs whole maps"),
        ({"encoder": "swin", "throw_ratio": 0.3}, "throw_ratio 0.3 does not apply"),
        ({"encoder": "swin", "rel_pos": "shared"}, "relative positions within windows"),
        ({"encoder": "swin", "depth": 3}, "SimMIM has no argument 'depth'"),
        ({"encoder": "resnet50"}, "encoder of SimMIM 'resnet50'"),
        ({"num_classes": 3}, "SimMIM has no argument 'num_classes'"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        create(**arguments)


@SLOW
def test_model_names_give_the_sizes_and_the_cost_is_counted():
    def flops(**arguments):
        return nnx.eval_shape(lambda: mim.create("simmim", **arguments, rngs=nnx.Rngs(0))).flops()

    full, base = flops(encoder="vit_base_patch16_224"), {"encoder": "vit_base_patch16_224", "throw_ratio": 0.3}
    assert full.total == pytest.approx(17.68e9, rel=1e-3)
    for reconstruction in ("partial", "progressive"):
        assert 0.696 <= flops(**base, reconstruction=reconstruction).total / full.total <= 0.701
    swin = flops(encoder="swin_base_patch4_window6_192")
    assert swin.predict == 6 * 6 * 1024 * 3 * 32**2 and swin.total == pytest.approx(11.39e9, rel=1e-3)


@SLOW
def test_a_vit_begins_as_published():
    params = split(create()).params
    assert not params["encoder.blocks.0.attn.relative_position_bias_table"].any()
    assert not params["encoder.patch_embed.proj.bias"].any() and (params["encoder.blocks.1.ls2.gamma"] == 0.1).all()
    for name, bound in (
        ("mask_token", 0.02),
        ("encoder.patch_embed.proj.kernel", 0.02),
        ("encoder.blocks.0.attn.proj.kernel", 0.02 / 2**0.5),
        ("encoder.blocks.1.mlp.fc2.kernel", 0.02 / 4**0.5),
        ("decoder.pred.bias", 0.25),
    ):
        assert 0.7 * bound < np.abs(params[name]).max() <= bound + 1e-8, name


@SLOW
def test_what_decays_is_as_published():
    for encoder, decayed in (
        ("vit", {"mask_token", "encoder.blocks.0.attn.relative_position_bias_table"}),
        ("swin", set()),
    ):
        model = create(encoder=encoder)
        named = {name: np.zeros(variable.shape) for name, variable in variables(model).items()}
        mask = decay_mask(named, model.no_decay)
        special = {name for name in named if "token" in name or "pos" in name or "relative" in name}
        assert {name for name in special if mask[name]} == decayed


def saved(file):
    return {name: array for name, array in weights(file).items() if not name.endswith(PATTERN)}


@pytest.mark.parametrize("name", [*VITS, SWIN_FILE])
def test_published_names_are_read_and_written(name):
    file, model = swin() if name == SWIN_FILE else vit(name)
    tensors, expected = to_published(model), saved(file)
    expected = {name: array for name, array in expected.items() if not name.startswith("agg.")}
    chex.assert_trees_all_equal(tensors, expected)
    some = sorted(expected)[len(expected) // 2]
    with pytest.raises(UserError, match="missing"):
        checkpoints.load_pretrained(model, {key: value for key, value in expected.items() if key != some})
    with pytest.raises(UserError, match="left over"):
        checkpoints.load_pretrained(model, {**expected, "encoder.blocks.99.norm1.weight": np.zeros(16, np.float32)})


@SLOW
@pytest.mark.parametrize("name", [SHARED, SWIN_FILE])
def test_a_file_says_which_network_it_is_of(name, tmp_path):
    file = golden(name)
    np.savez(tmp_path / "weights.npz", **weights(file))
    model = convert(tmp_path / "weights.npz", tmp_path / "copy.safetensors")
    chex.assert_trees_all_equal(checkpoints.read_tensors(tmp_path / "copy.safetensors"), saved(file))
    if name == SWIN_FILE:
        depths, heads, window = (*(tuple(file[name].tolist()) for name in ("depths", "heads")), int(file["cfg"][3]))
        assert (model.encoder.depths, model.encoder.heads) == (depths, heads)
        # Of unknown image size: the last map is taken for one window.
        assert model.encoder.grids == tuple((window << stage,) * 2 for stage in reversed(range(len(depths))))
    else:
        assert model.reconstruction == "progressive" and model.encoder.num_heads == file["cfg"][4]


@pytest.mark.parametrize("aggregator", ["convnext", "transformer"])
def test_a_file_says_which_aggregation_it_is_of(aggregator):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "mask_patch": 4}
    options = {"reconstruction": "progressive", "throw_ratio": 0.3, "aggregator": aggregator}
    tensors = to_published(mim.create("simmim", **sizes, **options, rngs=nnx.Rngs(0)))
    found = mim.recognise({name.removeprefix("encoder."): tensor.shape for name, tensor in tensors.items()})
    assert (found["name"], found["reconstruction"], found["aggregator"]) == ("simmim", "progressive", aggregator)


BEIT = {"style": "beit", "qkv_bias": "qv", "init_values": 0.1, "pos_embed": "none", "global_pool": "avg"}


@SLOW
@pytest.mark.parametrize("published", [False, True])
def test_fine_tuning_begins_with_the_shared_positions_in_every_block(published, tmp_path):
    model = create()
    table = model.encoder.blocks[0].attn.relative_position_bias_table
    table[...] = jax.random.normal(jax.random.key(3), table.shape)
    (checkpoints.save_pretrained if published else checkpoints.save_model)(model, tmp_path / "run.safetensors")
    sizes = {name: SMALL[name] for name in ("img_size", "patch_size", "embed_dim", "depth", "num_heads")}
    classifier = models.create("vit", **sizes, **BEIT, num_classes=3, rngs=nnx.Rngs(1))
    initialise(classifier, at(tmp_path / "run.safetensors"))
    tables = [block.attn.relative_position_bias_table for block in classifier.blocks]
    assert tables[0] is not tables[1]
    images = jax.random.normal(jax.random.key(0), (1, 32, 32, 3))
    tokens = [
        quickly(net, lambda net, images: net.run_blocks(images).tokens.x)(images) for net in (model.encoder, classifier)
    ]
    chex.assert_trees_all_close(*tokens, atol=1e-6, rtol=0)


@SLOW
def test_fine_tuning_of_a_swin_takes_windows_of_another_size(tmp_path):
    model = create(encoder="swin")
    checkpoints.save_model(model, tmp_path / "run.safetensors")
    for window, img_size in ((4, 32), (7, 56)):
        sizes = {**SWIN, "window_size": window, "img_size": img_size}
        classifier = models.create("swin", **sizes, num_classes=3, rngs=nnx.Rngs(1))
        initialise(classifier, at(tmp_path / "run.safetensors"))
        (theirs, ours) = (net.layers[1].blocks[1].attn for net in (model.encoder, classifier))
        chex.assert_trees_all_equal(theirs.qkv.kernel[...], ours.qkv.kernel[...])
        assert ours.relative_position_bias_table.shape == ((2 * window - 1) ** 2, 2)
        # The bias of no offset stays where it is: in the middle.
        chex.assert_trees_all_close(
            *(a.relative_position_bias_table[...][len(a.relative_position_bias_table) // 2] for a in (theirs, ours))
        )


@SLOW
def test_training_drops_paths():
    model = create(drop_path_rate=0.5)
    assert split(model).params.keys() == split(create()).params.keys()
    images, key = jax.random.normal(jax.random.key(0), (4, 32, 32, 3)), jax.random.key(1)
    mask_key, _ = jax.random.split(key)
    train = quickly(model, lambda model, images, key: model.training_loss(images, key))(images, key)
    plain = quickly(model, lambda model, images, key: model(images, key=key)[0])(images, mask_key)
    assert train != plain and np.isfinite(train)


@pytest.mark.slow
def test_initial_values_are_cut_at_one_standard_deviation_in_a_vit_only():
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 128, "mask_patch": 8, "rngs": nnx.Rngs(0)}
    vit = mim.create("simmim", depth=1, num_heads=2, pos_embed="learn", **sizes)
    swin = mim.create("simmim", encoder="swin", depths=(1, 1), num_heads=2, window_size=4, **sizes)
    for table in (vit.mask_token, vit.encoder.cls_token, vit.encoder.pos_embed):
        assert 0.01 < np.abs(table[...]).max() <= 0.02 and np.abs(table[...].std() - 0.0108) < 2e-3
    assert np.abs(swin.mask_token[...]).max() > 0.03


def test_its_crops_are_resized_bilinearly_as_published():
    load = lambda text: main.load_config(f"configs/mim/{text}").data.interpolation
    assert [load(f"simmim.py:encoder={encoder}") for encoder in ("vit", "swin")] == ["bilinear"] * 2
    assert [load(f"amt.py:base={base}") for base in ("simmim", "mae")] == ["bilinear", "bicubic"]
