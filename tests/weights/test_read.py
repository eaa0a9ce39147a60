"""Published weights: all of them in their place, or an error that names every one that is not."""

import json

import chex
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file
from support import golden, golden_names, weights

from jaxprune import models, reduction
from jaxprune.checkpoints import load_pretrained, read_tensors
from jaxprune.errors import UserError
from jaxprune.nn.params import variables
from jaxprune.ops.posembed import resample, resample_relative
from jaxprune.weights.rules import to_published

NAME = golden_names("token_reduction/backbone_*")[0]
BACKBONE = golden(NAME)
CONFIG = json.loads(str(BACKBONE["config"]))
TENSORS = {name: value for name, value in BACKBONE.items() if name not in ("config", "note")}
DIM, CLASSES, DEPTH, GRID = CONFIG["dim"], CONFIG["classes"], CONFIG["depth"], CONFIG["img"] // CONFIG["patch"]
STAGE, BLOCK = len(CONFIG["loc"]) - 1, CONFIG["loc"][-1]
# Of what was published: where it goes here, and how.
PLACES = {
    "cls_token": ("cls_token", lambda x: x),
    "pos_embed": ("pos_embed", lambda x: x),
    "patch_embed.proj.weight": ("patch_embed.proj.kernel", lambda x: x.transpose(2, 3, 1, 0).reshape(-1, DIM)),
    "blocks.1.norm1.weight": ("blocks.1.norm1.scale", lambda x: x),
    "blocks.1.attn.qkv.weight": ("blocks.1.attn.qkv.kernel", np.transpose),
    f"blocks.{DEPTH - 1}.mlp.fc2.bias": (f"blocks.{DEPTH - 1}.mlp.fc2.bias", lambda x: x),
    "norm.weight": ("norm.scale", lambda x: x),
    "head.weight": ("head.kernel", np.transpose),
}


def vit(img=CONFIG["img"], classes=CONFIG["classes"], **arguments):
    return models.create(
        "vit",
        img_size=img,
        patch_size=CONFIG["patch"],
        embed_dim=CONFIG["dim"],
        depth=CONFIG["depth"],
        num_heads=CONFIG["heads"],
        num_classes=classes,
        rngs=nnx.Rngs(0),
        **arguments,
    )


def arrays(model):
    return {name: np.array(variable[...]) for name, variable in variables(model).items()}


def without(*names):
    return {name: value for name, value in TENSORS.items() if name not in names}


@pytest.mark.parametrize("kind", ["dict", ".npz", ".safetensors"])
def test_fills_a_network_from(kind, tmp_path):
    source = TENSORS
    if kind == ".npz":
        np.savez(source := tmp_path / "weights.npz", **TENSORS)
    if kind == ".safetensors":
        save_file(TENSORS, source := tmp_path / "weights.safetensors")
    model = vit()
    assert load_pretrained(model, source) is model
    found = arrays(model)
    assert len(found) == len(TENSORS)
    for name, (ours, convert) in PLACES.items():
        np.testing.assert_array_equal(found[ours], convert(TENSORS[name]))


def test_half_precision_becomes_float32(tmp_path):
    save_file({name: value.astype(ml_dtypes.bfloat16) for name, value in TENSORS.items()}, tmp_path / "w.safetensors")
    model = load_pretrained(vit(), tmp_path / "w.safetensors")
    assert {value.dtype for value in arrays(model).values()} == {np.dtype("float32")}


def test_one_error_names_all_that_is_wrong_and_nothing_is_written():
    tensors = without("norm.weight", "blocks.1.mlp.fc1.bias")
    tensors |= {"head_dist.weight": np.zeros((CLASSES, DIM)), f"blocks.{DEPTH}.norm1.bias": np.zeros(DIM)}
    tensors |= {"head.weight": np.zeros((1000, DIM)), "blocks.0.attn.proj.weight": np.zeros((DIM, DIM, 1))}
    model = vit()
    before = arrays(model)
    with pytest.raises(UserError) as caught:
        load_pretrained(model, tensors)
    missing, left_over, misfits = str(caught.value).split(";")[1:]
    for part, names in (
        (missing, ["norm.scale", "blocks.1.mlp.fc1.bias", "new="]),
        (left_over, ["head_dist.weight", f"blocks.{DEPTH}.norm1.bias", "ignored="]),
        (misfits, [f"head.weight ({DIM}, 1000)", f"head.kernel ({DIM}, {CLASSES})"]),
        (misfits, [f"blocks.0.attn.proj.weight (1, {DIM}, {DIM})"]),
    ):
        assert all(name in part for name in names), part
    chex.assert_trees_all_equal(arrays(model), before)


def test_new_stays_as_built_and_ignored_is_left_out():
    model = vit(classes=CLASSES + 1)
    head = arrays(model)["head.kernel"]
    with pytest.raises(UserError, match="left over"):
        load_pretrained(model, TENSORS, new=("head.*",))
    with pytest.raises(UserError, match="missing"):
        load_pretrained(model, TENSORS, ignored=("head.*",))
    load_pretrained(model, TENSORS, new=("head.*",), ignored=("head.*",))
    np.testing.assert_array_equal(arrays(model)["head.kernel"], head)
    np.testing.assert_array_equal(arrays(model)["norm.bias"], TENSORS["norm.bias"])


def test_two_tensors_for_one_place_are_refused():
    with pytest.raises(UserError, match=r"norm.weight and norm.scale both map to norm.scale"):
        load_pretrained(vit(), {**TENSORS, "norm.scale": TENSORS["norm.weight"]})


def test_positions_are_resampled_to_the_grid_of_the_network(caplog):
    caplog.set_level("INFO")
    rows, columns = GRID + 2, GRID - 1
    model = load_pretrained(vit(img=(rows * CONFIG["patch"], columns * CONFIG["patch"])), TENSORS)
    expected = resample(jnp.asarray(TENSORS["pos_embed"]), (GRID, GRID), (rows, columns), 1)
    chex.assert_trees_all_close(arrays(model)["pos_embed"], np.asarray(expected))
    assert f"from a grid of {GRID}x{GRID} to {rows}x{columns}" in caplog.text


def test_positions_of_no_grid_are_named():
    rows = f"pos_embed has {GRID**2} rows, which with 1 prefix tokens make no square grid"
    with pytest.raises(UserError, match=rows):
        load_pretrained(vit(), {**TENSORS, "pos_embed": TENSORS["pos_embed"][:, 1:]})


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_truncated_file_is_named(suffix, tmp_path):
    path = tmp_path / f"weights{suffix}"
    (save_file if suffix == ".safetensors" else lambda tensors, path: np.savez(path, **tensors))(TENSORS, path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UserError, match=rf"weights{suffix} cannot be read .* truncated"):
        read_tensors(path)


def test_a_file_that_is_not_there_or_of_another_kind_is_named(tmp_path):
    with pytest.raises(UserError, match="no weights file"):
        read_tensors(tmp_path / "weights.npz")
    (tmp_path / "weights.h5").write_bytes(b"")
    with pytest.raises(UserError, match="neither"):
        read_tensors(tmp_path / "weights.h5")


# Of each method: one published tensor of the last stage, where it goes here, and how.
METHODS = {
    "dpc_knn": ("dpcknn", f"cluster_layers.{STAGE}.score.weight", "score.kernel", np.transpose),
    "sit": ("sit", f"cluster_layers.{STAGE}.weight.1.weight", "fc1.kernel", np.transpose),
    "patch_merger": ("patchmerger", f"cluster_layers.{STAGE}.queries", "queries", lambda x: x),
    "sinkhorn": ("sinkhorn", f"cluster_layers.{STAGE}.v", "v", lambda x: x),
    "dynamicvit": ("dynamicvit", f"score_predictor.{STAGE}.in_conv.0.weight", "norm.scale", lambda x: x),
}


def weights_of(file_name):
    return weights(golden(f"{NAME.replace('backbone', 'model')}_{file_name}"), "w.")


@pytest.mark.parametrize("method", METHODS)
def test_fills_the_modules_of(method):
    file_name, published, ours, convert = METHODS[method]
    own = weights_of(file_name)
    plan = reduction.Plan(method, keep_rate=CONFIG["keep"], reduction_loc=tuple(CONFIG["loc"]))
    fast = reduction.apply(vit(), plan, rngs=nnx.Rngs(0))
    load_pretrained(fast, {**TENSORS, **own})
    found = arrays(fast)
    assert len(found) == len(TENSORS) + len(own)
    np.testing.assert_array_equal(found[f"blocks.{BLOCK}.reducer.{ours}"], convert(own[published]))

    with pytest.raises(UserError, match=rf"missing .*: blocks.{BLOCK}.reducer.{ours}; "):
        load_pretrained(fast, {**TENSORS, **{k: v for k, v in own.items() if k != published}, "extra": np.zeros(1)})
    with pytest.raises(UserError, match=rf"left over .*{published}"):
        load_pretrained(vit(), {**TENSORS, **own})
    with pytest.raises(UserError, match=r"of another shape .*reducer"):
        load_pretrained(fast, {**TENSORS, **{name: value[..., None] for name, value in own.items()}})
    # A network that was trained dense: the method's modules stay as built.
    load_pretrained(fast, TENSORS, new=("blocks.*.reducer.*",))


def test_stages_of_the_file_that_the_plan_does_not_have_are_left_over():
    plan, last = reduction.Plan("dpc_knn", reduction_loc=tuple(CONFIG["loc"][:-1])), f"cluster_layers.{STAGE}.score"
    fast = reduction.apply(vit(), plan, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match=rf"left over .*: {last}\.bias, {last}\.weight\."):
        load_pretrained(fast, {**TENSORS, **weights_of("dpcknn")})


def test_tables_of_windows_are_moved_to_windows_of_another_size():
    sizes = {"img_size": 48, "embed_dim": 8, "depths": (1,), "num_heads": (2,), "num_classes": 0}
    make = lambda size: models.create("swin_tiny_patch4_window7_224", **sizes, window_size=size, rngs=nnx.Rngs(0))
    published = to_published(make(3))
    name = "layers.0.blocks.0.attn.relative_position_bias_table"
    # Of a bias that is the offset in rows, what lies between is linear; a larger window goes as far.
    table = np.repeat(np.arange(-2.0, 3.0), 5)[:, None] * np.ones((1, 2))
    moved = variables(load_pretrained(make(4), {**published, name: table}))[name][...]
    assert moved.shape == (49, 2)
    np.testing.assert_allclose(moved, resample_relative(table, (4, 4), 0), rtol=1e-6)
    np.testing.assert_allclose(moved.reshape(7, 7, 2)[[0, 3, 6], 0, 0], [-2.0, 0.0, 2.0], atol=1e-5)


def test_a_pattern_that_stands_alone_is_not_read_letter_by_letter():
    model = models.create("vit", img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2, rngs=nnx.Rngs(0))
    for options in ({"new": "head.*"}, {"ignored": "head.*"}):
        with pytest.raises(UserError, match=r"'head\.\*' stands alone where several may stand: write \('head\.\*',\)"):
            load_pretrained(model, {"foo.weight": np.ones(3)}, **options)
