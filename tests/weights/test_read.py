"""Published weights: all of them in their place, or an error that names every one that is not."""

import json

import chex
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file
from support import golden, weights

from jaxprune import models, reduction
from jaxprune.checkpoints import load_pretrained, read_tensors
from jaxprune.errors import UserError
from jaxprune.nn.params import variables
from jaxprune.ops.posembed import resample, resample_relative
from jaxprune.weights.rules import to_published

BACKBONE = golden("token_reduction/backbone_p6")
CONFIG = json.loads(str(BACKBONE["config"]))
TENSORS = {name: value for name, value in BACKBONE.items() if name not in ("config", "note")}
# Of what was published: where it goes here, and how.
PLACES = {
    "cls_token": ("cls_token", lambda x: x),
    "pos_embed": ("pos_embed", lambda x: x),
    "patch_embed.proj.weight": ("patch_embed.proj.kernel", lambda x: x.transpose(2, 3, 1, 0).reshape(-1, 48)),
    "blocks.3.norm1.weight": ("blocks.3.norm1.scale", lambda x: x),
    "blocks.3.attn.qkv.weight": ("blocks.3.attn.qkv.kernel", np.transpose),
    "blocks.5.mlp.fc2.bias": ("blocks.5.mlp.fc2.bias", lambda x: x),
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
    tensors = without("norm.weight", "blocks.2.mlp.fc1.bias")
    tensors |= {"head_dist.weight": np.zeros((10, 48)), "blocks.6.norm1.bias": np.zeros(48)}
    tensors |= {"head.weight": np.zeros((1000, 48)), "blocks.0.attn.proj.weight": np.zeros((48, 48, 1))}
    model = vit()
    before = arrays(model)
    with pytest.raises(UserError) as caught:
        load_pretrained(model, tensors)
    missing, left_over, misfits = str(caught.value).split(";")[1:]
    for part, names in (
        (missing, ["norm.scale", "blocks.2.mlp.fc1.bias", "new="]),
        (left_over, ["head_dist.weight", "blocks.6.norm1.bias", "ignored="]),
        (misfits, ["head.weight (48, 1000)", "head.kernel (48, 10)", "blocks.0.attn.proj.weight (1, 48, 48)"]),
    ):
        assert all(name in part for name in names), part
    chex.assert_trees_all_equal(arrays(model), before)


def test_new_stays_as_built_and_ignored_is_left_out():
    model = vit(classes=7)
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
    model = load_pretrained(vit(img=(64, 40)), TENSORS)
    expected = resample(jnp.asarray(TENSORS["pos_embed"]), (6, 6), (8, 5), 1)
    chex.assert_trees_all_close(arrays(model)["pos_embed"], np.asarray(expected))
    assert "from a grid of 6x6 to 8x5" in caplog.text


def test_positions_of_no_grid_are_named():
    with pytest.raises(UserError, match=r"pos_embed has 36 rows, which with 1 prefix tokens make no square grid"):
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


# Of each method: one published tensor of stage 2 (at block 4), where it goes here, and how.
METHODS = {
    "dpc_knn": ("dpcknn", "cluster_layers.2.score.weight", "score.kernel", np.transpose),
    "sit": ("sit", "cluster_layers.2.weight.1.weight", "fc1.kernel", np.transpose),
    "patch_merger": ("patchmerger", "cluster_layers.2.queries", "queries", lambda x: x),
    "sinkhorn": ("sinkhorn", "cluster_layers.2.v", "v", lambda x: x),
    "dynamicvit": ("dynamicvit", "score_predictor.2.in_conv.0.weight", "norm.scale", lambda x: x),
}


@pytest.mark.parametrize("method", METHODS)
def test_fills_the_modules_of(method):
    file_name, published, ours, convert = METHODS[method]
    own = weights(golden(f"token_reduction/model_p6_{file_name}"), "w.")
    plan = reduction.Plan(method, keep_rate=CONFIG["keep"], reduction_loc=tuple(CONFIG["loc"]))
    fast = reduction.apply(vit(), plan, rngs=nnx.Rngs(0))
    load_pretrained(fast, {**TENSORS, **own})
    found = arrays(fast)
    assert len(found) == len(TENSORS) + len(own)
    np.testing.assert_array_equal(found[f"blocks.4.reducer.{ours}"], convert(own[published]))

    with pytest.raises(UserError, match=rf"missing .*: blocks.4.reducer.{ours}; "):
        load_pretrained(fast, {**TENSORS, **{k: v for k, v in own.items() if k != published}, "extra": np.zeros(1)})
    with pytest.raises(UserError, match=rf"left over .*{published}"):
        load_pretrained(vit(), {**TENSORS, **own})
    with pytest.raises(UserError, match=r"of another shape .*reducer"):
        load_pretrained(fast, {**TENSORS, **{name: value[..., None] for name, value in own.items()}})
    # A network that was trained dense: the method's modules stay as built.
    load_pretrained(fast, TENSORS, new=("blocks.*.reducer.*",))


def test_stages_of_the_file_that_the_plan_does_not_have_are_left_over():
    own = weights(golden("token_reduction/model_p6_dpcknn"), "w.")
    fast = reduction.apply(vit(), reduction.Plan("dpc_knn", reduction_loc=(1, 2)), rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match=r"left over .*: cluster_layers.2.score.bias, cluster_layers.2.score.weight\."):
        load_pretrained(fast, {**TENSORS, **own})


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
