"""GreenMIM against the published numbers, and Swin on visible tokens against Swin."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, nhwc, quickly, ratio_of, weights

from jaxprune import checkpoints, mim, models
from jaxprune.errors import UserError
from jaxprune.mim.greenmim import RESTORE
from jaxprune.mim.parts.masker import RandomMasker, SharedMasker, SharedMasks
from jaxprune.mim.parts.visible_swin import VisibleCells, attend_visible, cheapest
from jaxprune.nn.params import split, unfilled, variables
from jaxprune.nn.swin_block import SwinBlock
from jaxprune.nn.windows import Windows
from jaxprune.open import at, convert, initialise
from jaxprune.ranking import pseudo_labels
from jaxprune.train.optimizer import decay_mask

FILE = golden("mim/greenmim_forward")
IMAGES, NOISE = nhwc(FILE["imgs"]), FILE["noise"]
IMG, PATCH, DIM, WINDOW, CELL, DECODER_DIM, DECODER_DEPTH, DECODER_HEADS = (int(v) for v in FILE["cfg"])
CELLS = FILE["mask"].shape[1]
ENCODER = {
    "img_size": IMG,
    "patch_size": PATCH,
    "embed_dim": DIM,
    "depths": tuple(FILE["depths"].tolist()),
    "num_heads": tuple(FILE["heads"].tolist()),
    "window_size": WINDOW,
    "mlp_ratio": float(FILE["mlp_ratio"]),
}
SIZES = {
    **ENCODER,
    "decoder_embed_dim": DECODER_DIM,
    "decoder_depth": DECODER_DEPTH,
    "decoder_num_heads": DECODER_HEADS,
    "mask_ratio": 1 - ratio_of(FILE["latent"].shape[1], CELLS),
}


@functools.cache
def published(new=(), **changes):
    model = unfilled(lambda: mim.create("greenmim", **SIZES, **changes, rngs=nnx.Rngs(0)))
    return checkpoints.load_pretrained(model, weights(FILE), new=new)


def assert_as_published(loss, aux):
    np.testing.assert_array_equal(aux.mask, FILE["mask"])
    np.testing.assert_array_equal(aux.ids_restore, FILE["ids_restore"])
    chex.assert_trees_all_close(aux.latent, FILE["latent"], atol=5e-5, rtol=0)
    chex.assert_trees_all_close(aux.pred[: len(FILE["pred"])], FILE["pred"], atol=5e-5, rtol=0)
    chex.assert_trees_all_close(loss, FILE["loss_norm"], rtol=1e-5)


@pytest.mark.parametrize("rows", [1, pytest.param(len(IMAGES), marks=pytest.mark.slow)], ids=["shared", "per image"])
def test_it_matches(rows):
    model = published()
    assert model.patch_size == (CELL, CELL) and model.num_patches == CELLS
    run = quickly(model, lambda model, images, noise: model(images, noise=noise))
    assert_as_published(*run(IMAGES, jnp.asarray(np.repeat(NOISE, rows, axis=0))))


@pytest.mark.slow
def test_a_mask_known_on_the_host_gives_the_same():
    model = published()
    masks = model.draw(jnp.asarray(IMAGES), noise=jnp.asarray(NOISE))
    encode = quickly(model, lambda model, images: model.encode(images, masks))
    chex.assert_trees_all_close(encode(IMAGES), FILE["latent"], atol=5e-5, rtol=0)


# Windows that fit the map, that reach beyond it, and that cover a side of it; cells that are and are not windows.
LAYOUTS = [((8, 8), (4, 4), 2), ((6, 12), (4, 5), 2), ((4, 8), (7, 3), 2)]


CASES = [(*layout, shifted) for layout in LAYOUTS for shifted in (False, True)]
QUICK = CASES[3]


@pytest.mark.parametrize(
    ("grid", "size", "side", "shifted"),
    [case if case == QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_every_form_of_attention_is_that_inside_of_windows(grid, size, side, shifted):
    windows = Windows.of(grid, size, shifted=shifted)
    block = SwinBlock(8, 2, windows=windows, rngs=nnx.Rngs(0))
    table = variables(block)["attn.relative_position_bias_table"]
    table[...] = jax.random.normal(jax.random.key(1), table.shape)
    cells = VisibleCells((grid[0] // side, grid[1] // side), side)
    ids = np.sort(np.random.default_rng(0).permutation(cells.grid[0] * cells.grid[1])[:5])[None]
    x = jax.random.normal(jax.random.key(2), (2, ids.size * side**2, 8))

    def forms(block, x, ids_traced):
        heads = block.project(x)
        given = dict.fromkeys(("all", "map", "packed"), ids_traced) | {"groups": ids}
        each = jnp.concatenate([ids_traced, ids_traced])
        found = {form: attend_visible(block, heads, cells, which, form) for form, which in given.items()}
        return found | {f"{form} each": attend_visible(block, heads, cells, each, form) for form in ("all", "map")}

    heads = jax.tree.map(np.asarray, block.project(x))
    coords = cells.coords(ids)[0]
    expected = np.zeros(x.shape)
    # Where windows start that do not wrap around the map.
    sides = zip(windows.size, windows.shift, grid, strict=True)
    starts = [[0, *range(shift or height, end, height)] for height, shift, end in sides]
    window = np.stack([np.searchsorted(s, coords[:, axis], "right") for axis, s in enumerate(starts)], axis=1)
    for i in range(len(coords)):
        near = np.flatnonzero((window == window[i]).all(1))
        apart = coords[i] - coords[near] + np.asarray(windows.size) - 1
        bias = np.asarray(table[...])[apart[:, 0] * (2 * windows.size[1] - 1) + apart[:, 1]]
        logits = np.einsum("bhe,bhne->bhn", heads.q[:, :, i], heads.k[:, :, near]) * 4**-0.5 + bias.T[None]
        weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        expected[:, i] = np.einsum("bhn,bhne->bhe", weights, heads.v[:, :, near]).reshape(2, 8)
    for form, found in quickly(block, forms)(x, jnp.asarray(ids)).items():
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=form)


def test_the_form_of_attention_goes_by_the_number_of_pairs():
    first, third = Windows.of((56, 56), (7, 7), shifted=True), Windows.of((14, 14), (7, 7), shifted=True)
    assert [cheapest(first, 768), cheapest(first, 768, shared=False), cheapest(third, 48)] == ["packed", "map", "all"]
    assert [cheapest(first, 768, on_host=True), cheapest(third, 48, on_host=True)] == ["groups", "all"]


@pytest.mark.slow
def test_the_cost_of_swin_base():
    model = nnx.eval_shape(lambda: mim.create("greenmim", encoder="swin_base_patch4_window7_224", rngs=nnx.Rngs(0)))
    tokens, width = (768, 192, 48, 12), (128, 256, 512, 1024)
    linear = 12 * 768 * 128**2
    pairs = (2 * 768 * 49, 2 * 192 * 49, 18 * 48 * 48, 2 * 12 * 12)
    merging = sum(n * 4 * d * 2 * d for n, d in zip(tokens[1:], width[:-1], strict=True))
    attention = sum(2 * d * count for d, count in zip(width, pairs, strict=True))
    assert model.flops().encoder == 24 * linear + merging + attention
    assert model.flops().patch_embed == 4 * model.flops(as_published=False).patch_embed * 49 // 48
    assert model.num_patches == 49 and model.masker.num_visible == 12


@pytest.mark.slow
def test_nothing_thrown_is_exactly_greenmim():
    run = lambda model: quickly(model, lambda model, images, noise: model(images, noise=noise))(IMAGES, NOISE)
    loss, aux = run(published())
    again, other = run(published(new=("decoder.aggregate.*",), reconstruction="progressive", throw_ratio=0.0))
    chex.assert_trees_all_equal((loss, aux.pred, aux.latent), (again, other.pred, other.latent))


@pytest.mark.slow
def test_exact_restoring_puts_each_latent_in_its_own_cell():
    ordered = np.where(FILE["mask"][:1] > 0, 1.0, np.arange(CELLS)[None] / CELLS).astype(np.float32)
    noises = (jnp.asarray(NOISE), jnp.asarray(ordered))
    runs = [quickly(published(restore=how), lambda model, *given: model(given[0], noise=given[1])) for how in RESTORE]
    mixed, exact = ([run(IMAGES, noise) for noise in noises] for run in runs)
    # The same cells are visible: what the decoder makes of them does not depend on the order they were drawn in.
    chex.assert_trees_all_close(exact[0][1].pred, exact[1][1].pred, atol=1e-5)
    chex.assert_trees_all_close(exact[1][1].pred, mixed[1][1].pred, atol=1e-5)
    assert np.abs(mixed[0][1].pred - mixed[1][1].pred).max() > 0.1
    chex.assert_trees_all_close(exact[0][1].latent, mixed[0][1].latent, atol=1e-5)


@pytest.mark.slow
def test_the_images_of_a_batch_share_a_mask_unless_asked_otherwise(rng_key):
    masker = SharedMasker((4, 4), throw_ratio=0.5)
    one, each = masker.draw(3, key=rng_key), RandomMasker((4, 4), throw_ratio=0.5).draw(3, key=rng_key)
    assert isinstance(one, SharedMasks) and not isinstance(each, SharedMasks)
    assert (one.masked == one.masked[:1]).all() and (one.retained == one.retained[:1]).all()
    assert not (each.masked == each.masked[:1]).all()
    noise = jax.random.uniform(rng_key, (3, 16))
    given = masker.draw(3, noise=noise, first=jnp.asarray([2]))
    assert not isinstance(given, SharedMasks)
    np.testing.assert_array_equal(given.ids_keep, jnp.argsort(noise, axis=1)[:, :4])
    starts = masker.draw(3, noise=noise[:1], first=jnp.asarray([0, 5, 9]))
    assert isinstance(starts, SharedMasks) and not (starts.retained == starts.retained[:1]).all()
    with pytest.raises(UserError, match="'noise': 2"):
        masker.draw(3, noise=noise[:2], first=jnp.asarray([2]))


@pytest.mark.parametrize("rows", [1, 3])
def test_the_cells_to_decode_may_be_passed(rows):
    masker, noise = SharedMasker((4, 4), throw_ratio=0.5), jnp.arange(16.0)[None]
    retained = np.stack([np.roll(np.arange(16) >= 12, -row) for row in range(rows)])
    masks = masker.draw(3, noise=noise, retained=retained)
    assert isinstance(masks, SharedMasks)
    np.testing.assert_array_equal(masks.retained, np.broadcast_to(retained, (3, 16)))


@pytest.mark.slow
def test_it_begins_and_decays_as_published():
    model = mim.create("greenmim", **SIZES, rngs=nnx.Rngs(0))
    params = split(model).params
    for name, array in params.items():
        if name.endswith(".kernel"):
            bound = (6 / sum(array.shape)) ** 0.5
            assert 0.8 * bound < np.abs(array).max() <= bound, name
    mask = decay_mask(params, model.no_decay)
    exempt = {name for name, array in params.items() if array.ndim > 1 and not mask[name]}
    tables = {name for name in params if name.endswith("relative_position_bias_table")}
    assert tables and exempt == {"decoder.mask_token", *tables}


def test_an_index_beyond_the_masked_cells_is_refused(rng_key):
    with pytest.raises(UserError, match="first=12 is not an index into the 12 masked patches: pass one from 0 to 11"):
        SharedMasker((4, 4), throw_ratio=0.5).draw(2, key=rng_key, first=jnp.asarray([12]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"img_size": IMG + PATCH},
            f"img_size {IMG + PATCH} is not a whole number of cells of {CELL}x{CELL} pixels",
        ),
        ({"restore": "right"}, "restore"),
        ({"throw_ratio": 0.5}, "reconstruction='progressive'"),
        ({"depth": 2}, "Did you mean 'depths'"),
        ({"num_classes": 3}, "GreenMIM has no argument 'num_classes'"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        mim.create("greenmim", **{**SIZES, **arguments}, rngs=nnx.Rngs(0))


def test_a_published_file_fills_the_swin_that_is_fine_tuned():
    swin = unfilled(lambda: models.create("swin", **ENCODER, num_classes=3, rngs=nnx.Rngs(0)))
    ignored = ("decoder_*", "mask_token")
    checkpoints.load_pretrained(swin, weights(FILE), ignored=ignored, new=("head.*",))
    ours = variables(published().encoder)
    for name, variable in variables(swin).items():
        if not name.startswith("head."):
            np.testing.assert_array_equal(variable[...], ours[name][...])


@pytest.mark.slow
def test_a_pre_training_file_is_converted_and_initialises_a_classifier(tmp_path):
    model, path = published(), tmp_path / "green.safetensors"
    checkpoints.save_pretrained(model, path)
    again = convert(path, tmp_path / "again.safetensors")
    assert again.encoder.heads == model.encoder.heads and again.grid == model.grid
    chex.assert_trees_all_equal(*({n: v[...] for n, v in variables(m).items()} for m in (again, model)))
    swin = unfilled(lambda: models.create("swin", **ENCODER, num_classes=3, rngs=nnx.Rngs(0)))
    initialise(swin, at(path))
    for name, variable in variables(model.encoder).items():
        np.testing.assert_array_equal(variables(swin)[name][...], variable[...])


def test_labels_of_ltrp_need_another_encoder():
    with pytest.raises(UserError, match="The SwinTransformer of GreenMIM has no patches"):
        pseudo_labels(published(), jnp.asarray(IMAGES), key=jax.random.key(0))
