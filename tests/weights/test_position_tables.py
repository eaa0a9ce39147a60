"""Position tables of another grid: every way to open a network resamples them by the network's own rule.

The table below is style x size x way to open; `load_pretrained` of the same weights is what all ways have to give.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import slow_but

from jaxprune import checkpoints, mim, models
from jaxprune.checkpoints.run import leave_network, write_card
from jaxprune.checkpoints.store import CheckpointStore
from jaxprune.errors import UserError
from jaxprune.models.vit_styles import STYLES
from jaxprune.nn.params import Fixed, split, unfilled, variables
from jaxprune.open import File, Run, initialise
from jaxprune.ops.posembed import resample, resample_relative
from jaxprune.train.state import TrainState
from jaxprune.weights.rules import to_published

TRAINED = 64
SIZES = {"smaller": 32, "larger": 96, "not square": (32, 96)}
TABLES = ("pos_embed", "relative_position_bias_table")


def filled(make):
    """A network of random weights, computed tables excepted, built without the programs of its initialisers."""
    network, rng = unfilled(make), np.random.default_rng(0)
    for variable in variables(network).values():
        if not isinstance(variable, Fixed):
            variable[...] = rng.normal(size=variable.shape).astype(np.float32)
    return network


def of_style(style, img_size=TRAINED, **arguments):
    # A NaFlexViT has no positions for prefix tokens.
    depth = 2 if STYLES[style].shared_bias else 1
    sizes = {"patch_size": 8, "embed_dim": 8, "depth": depth, "num_heads": 1, "mlp_ratio": 1.0, "num_classes": 2}
    arguments = {**sizes, "no_embed_class": style.startswith("naflex"), **arguments}
    return models.create("vit", style=style, img_size=img_size, **arguments, rngs=nnx.Rngs(0))


@functools.cache
def trained(style):
    return filled(lambda: of_style(style))


def loaded(model, img_size, make):
    return checkpoints.load_pretrained(unfilled(lambda: make(img_size)), to_published(model))


def tables(network):
    """{name: position table}, of which a network without any has none."""
    return {
        name: np.asarray(variable[...])
        for name, variable in variables(network).items()
        if name.rpartition(".")[2] in TABLES
    }


def same_tables(opened, expected):
    ours, theirs = tables(opened), tables(expected)
    assert ours.keys() == theirs.keys() and ours
    for name, table in theirs.items():
        np.testing.assert_array_equal(ours[name], table, err_msg=name)


def saved_file(model, path, img_size, make):
    checkpoints.save_model(model, path / "model.safetensors")
    return checkpoints.load_model(path / "model.safetensors", img_size=img_size)


def fine_tuned(model, path, img_size, make):
    checkpoints.save_model(model, path / "model.safetensors")
    network = unfilled(lambda: make(img_size))
    initialise(network, Run(path / "model.safetensors"))
    return network


def fine_tuned_from_a_published_file(model, path, img_size, make):
    checkpoints.save_pretrained(model, path / "published.safetensors")
    network = unfilled(lambda: make(img_size))
    initialise(network, File(path / "published.safetensors"))
    return network


def network_left_by_a_run(model, path, img_size, make):
    leave_network(model, path)
    return checkpoints.load_model(path, img_size=img_size)


def run_directory(model, path, img_size, make):
    write_card(path, model)
    with CheckpointStore(path / "checkpoints", keep=1) as store:
        store.save(1, TrainState(step=np.int32(1), params=split(model).params, opt_state=(), extra={}), {})
    return checkpoints.load_model(path, img_size=img_size)


WAYS = {
    "file": saved_file,
    "fine-tuning": fine_tuned,
    "fine-tuning from a published file": fine_tuned_from_a_published_file,
    "network left by a run": network_left_by_a_run,
}


@pytest.mark.slow
@pytest.mark.parametrize("size", slow_but(["smaller"], SIZES))
@pytest.mark.parametrize("style", STYLES)
def test_every_way_to_open_a_style_gives_the_tables_of_load_pretrained(style, size, tmp_path):
    model, make = trained(style), functools.partial(of_style, style)
    reference = loaded(model, SIZES[size], make)
    for way in WAYS.values():
        same_tables(way(model, tmp_path, SIZES[size], make), reference)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["vit", "timm", "beit_shared"])
def test_a_run_directory_gives_the_tables_of_load_pretrained(style, tmp_path):
    model, make = trained(style), functools.partial(of_style, style)
    same_tables(run_directory(model, tmp_path, 32, make), loaded(model, 32, make))


_CLIP = {"num_frames": 4, "patch_size": 8, "embed_dim": 12, "depth": 1, "num_heads": 1, "num_classes": 2}
_VIT = {"patch_size": 8, "embed_dim": 8, "depth": 2, "num_heads": 1}
_DECODER = {"decoder_embed_dim": 8, "decoder_depth": 1, "decoder_num_heads": 1}
_SWIN = {"patch_size": 4, "embed_dim": 8, "depths": (1, 2), "num_heads": (1, 1), "window_size": 7, "num_classes": 2}
_HIERA = {"embed_dim": 8, "num_heads": 1, "stages": (1, 1), "num_classes": 2}
OTHERS = {
    "swin": (models, "swin", _SWIN),
    "swin of another shape": (models, "swin", {**_SWIN, "window_size": (4, 2)}),
    "hiera": (models, "hiera", _HIERA),
    "hiera with positions of units": (models, "hiera", {**_HIERA, "abs_win_pos_embed": True}),
    "clips, learned": (models, "video_vit", {**_CLIP, "pos_embed": "learn"}),
    "clips, computed": (models, "video_vit", _CLIP),
    "computed": (models, "vit", {**_VIT, "num_classes": 2, "pos_embed": "sincos"}),
    "mae": (mim, "mae", {**_VIT, **_DECODER}),
    "mae, learned": (mim, "mae", {**_VIT, **_DECODER, "pos_embed": "learn", "style": "timm"}),
    "mae, learned in the decoder": (mim, "mae", {**_VIT, **_DECODER, "decoder_pos_embed": "learn"}),
    "simmim": (mim, "simmim", {**_VIT, "mask_patch": 16}),
}


@pytest.mark.parametrize("size", slow_but(["not square"], SIZES))
@pytest.mark.parametrize("which", slow_but(["hiera with positions of units"], OTHERS))
def test_other_networks_give_the_tables_of_load_pretrained(which, size, tmp_path):
    package, name, sizes = OTHERS[which]
    make = lambda img_size: package.create(name, img_size=img_size, **sizes, rngs=nnx.Rngs(0))
    model = filled(lambda: make(TRAINED))
    same_tables(saved_file(model, tmp_path, SIZES[size], make), loaded(model, SIZES[size], make))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pos_embed", "decoder.pos_embed"])
def test_a_computed_table_is_that_of_the_new_grid(name, tmp_path):
    _, kind, sizes = OTHERS["mae"]
    make = lambda img_size: mim.create(kind, img_size=img_size, **sizes, rngs=nnx.Rngs(0))
    opened = saved_file(make(TRAINED), tmp_path, 32, make)
    name = name if name in variables(opened) else f"encoder.{name}"
    np.testing.assert_array_equal(variables(opened)[name][...], variables(make(32))[name][...])


def test_a_saved_network_is_of_the_grid_on_its_card_whatever_its_number_of_patches(tmp_path):
    """64x32 pixels have as many patches, and as many offsets between patches, as 32x64."""
    model = filled(lambda: of_style("beit", (64, 32)))
    before = tables(model)
    for way in (saved_file, fine_tuned, network_left_by_a_run):
        found = tables(way(model, tmp_path, (32, 64), functools.partial(of_style, "beit")))
        moved = resample(jnp.asarray(before["pos_embed"]), (8, 4), (4, 8), 1, antialias=True)
        np.testing.assert_array_equal(found["pos_embed"], moved)
        for name in before.keys() - {"pos_embed"}:
            np.testing.assert_array_equal(found[name], resample_relative(before[name], (4, 8), old_grid=(8, 4)))


def test_offsets_of_a_grid_that_is_not_square_are_spread_axis_by_axis():
    rows, columns = np.meshgrid(np.arange(-3.0, 4), np.arange(-1.0, 2), indexing="ij")
    table = np.concatenate([np.stack([rows, columns], -1).reshape(-1, 2), np.ones((3, 2))])
    moved = resample_relative(table, (2, 4), old_grid=(4, 2))
    assert moved.shape == (3 * 7 + 3, 2)
    rows, columns = np.moveaxis(moved[:-3].reshape(3, 7, 2), -1, 0)
    # The ends stay the ends, the middle the middle; what is of one axis only stays so.
    np.testing.assert_allclose(columns[:, [0, 3, 6]], [[-1, 0, 1]] * 3, atol=1e-4)
    np.testing.assert_allclose(rows[1], 0, atol=1e-6)
    assert np.ptp(rows, axis=1).max() < 1e-6 and np.ptp(columns, axis=0).max() < 1e-6
    np.testing.assert_array_equal(moved[-3:], table[-3:])


@pytest.mark.parametrize("style", ["naflex", "naflex_tanh"])
def test_positions_of_prefix_tokens_have_no_name_in_a_naflex_file(style):
    with pytest.raises(UserError, match=r"no name for pos_embed with 1 rows before .* no_embed_class=True"):
        to_published(of_style(style, 32, no_embed_class=False))
