"""Swin and ConvNeXt: published blocks under PaPr's masks, files of their own repositories, and what refuses."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, nhwc, quickly, weights

from jaxprune import checkpoints, flops, models, reduction, scoring
from jaxprune.checkpoints.rules import to_published
from jaxprune.errors import UserError
from jaxprune.models.convnext import ConvNeXtBlock
from jaxprune.models.hierarchical import on_map
from jaxprune.models.swin import SwinBlock
from jaxprune.nn.params import variables
from jaxprune.nn.tokens import NOTHING, Attended
from jaxprune.nn.walk import _on_grid
from jaxprune.nn.windows import Windows
from jaxprune.reduction import Plan
from jaxprune.reduction.base import Step
from jaxprune.reduction.from_scores import FromScores

BLOCKS = golden("ltrp_papr/papr_hierarchical_blocks")
CONFIG = json.loads(str(BLOCKS["config_json"]))
GRID = (CONFIG["grid"],) * 2


def fill(block, prefix, names):
    """Fills a block from the published tensors, whose layers are named by a table."""
    published = weights(BLOCKS, prefix)
    targets = variables(block)
    for theirs, tensor in published.items():
        ours = names.get(theirs, theirs.replace("norm1.weight", "norm1.scale").replace("norm2.weight", "norm2.scale"))
        if ours.endswith("weight"):
            ours, tensor = ours.replace("weight", "kernel"), tensor.T
        target = targets.pop(ours)
        target[...] = jnp.asarray(tensor).reshape(target.shape)
    assert not targets


def masked(block):
    """The block under a plan's scorer that keeps the published share."""
    step = Step(0, 0, GRID, 0, 64, CONFIG["n_keep"], CONFIG["keep_ratio"], 8, 2, leaves=False)
    block.reducer = nnx.data(FromScores(step))
    block.needs = frozenset({"scores"})
    return block


def significance():
    maps = jnp.asarray(BLOCKS["psm_small"]).reshape(2, -1)
    return Attended(scores=_on_grid(maps, (4, 4), GRID))


def test_the_significance_map_keeps_the_published_places():
    order = jnp.argsort(-significance().scores, axis=1)[:, : CONFIG["n_keep"]]
    np.testing.assert_array_equal(np.sort(order, 1), np.sort(BLOCKS["idx_keep"], 1))


def run(block, tokens, attended=NOTHING, *, train=False):
    key = jax.random.key(0) if train else None
    call = lambda block, tokens, attended: block(tokens, attended, grid=GRID, train=train, key=key)
    return quickly(block, call)(tokens, attended)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_block_of_swin(shift):
    options = CONFIG["swin"]
    windows = Windows.of(GRID, (options["window"],) * 2, shifted=bool(shift))
    block = SwinBlock(8, options["heads"], windows=windows, mlp_ratio=float(options["mlp_ratio"]), rngs=nnx.Rngs(0))
    fill(block, f"swin_shift{shift}_w/", {})
    tokens = on_map(jnp.asarray(BLOCKS[f"swin_shift{shift}_x"]), GRID)
    dense, *_ = run(block, tokens)
    chex.assert_trees_all_close(np.float64(dense.x), BLOCKS[f"swin_shift{shift}_out_dense_f64"], atol=1e-5)
    pruned, _, report = run(masked(block), tokens, significance())
    chex.assert_trees_all_close(np.float64(pruned.x), BLOCKS[f"swin_shift{shift}_out_masked_f64"], atol=1e-5)
    assert np.sum(np.asarray(report.row_map) >= 0) == 2 * CONFIG["n_keep"]


@pytest.mark.parametrize("train", [False, True])
def test_a_block_of_convnext(train):
    block = ConvNeXtBlock(8, gamma=1.0, rngs=nnx.Rngs(0))
    names = {"dwconv.bias": "conv_dw.bias", "norm.weight": "norm.scale", "norm.bias": "norm.bias", "gamma": "gamma"}
    for layer in (1, 2):
        names |= {f"pwconv{layer}.{kind}": f"mlp.fc{layer}.{kind}" for kind in ("weight", "bias")}
    kernel = BLOCKS["convnext_w/dwconv.weight"]
    names["dwconv.weight"] = "conv_dw.kernel"
    published = dict(BLOCKS)
    published["convnext_w/dwconv.weight"] = kernel.transpose(2, 3, 1, 0)
    targets = variables(block)
    for theirs, tensor in weights(published, "convnext_w/").items():
        ours = names[theirs]
        ours, tensor = (ours[:-6] + "kernel", tensor.T) if ours.endswith("weight") else (ours, tensor)
        targets.pop(ours)[...] = jnp.asarray(tensor)
    assert not targets
    maps = jnp.asarray(nhwc(BLOCKS["convnext_x"]))
    tokens = on_map(maps.reshape(2, 64, 8), GRID)
    on = lambda found: np.float64(found.x).reshape(2, *GRID, 8)
    dense, *_ = run(block, tokens)
    chex.assert_trees_all_close(on(dense), nhwc(BLOCKS["convnext_out_dense_f64"]), atol=1e-5)
    pruned, *_ = run(masked(block), tokens, significance(), train=train)
    name = "convnext_out_masked_trainmode_f64" if train else "convnext_out_masked_f64"
    chex.assert_trees_all_close(on(pruned), nhwc(BLOCKS[name]), atol=1e-5)


def swin(**options):
    sizes = {"img_size": 64, "window_size": 4, "embed_dim": 8, "depths": (1, 1, 2, 1), "num_heads": (1, 1, 2, 2)}
    return models.create("swin_tiny_patch4_window7_224", **sizes, num_classes=3, **options, rngs=nnx.Rngs(0))


def convnext(**options):
    sizes = {"depths": (1, 1, 2, 1), "dims": (8, 8, 16, 16), "num_classes": 3}
    return models.create("convnext_tiny", **sizes, **options, rngs=nnx.Rngs(0))


def hiera(**options):
    sizes = {"img_size": 64, "embed_dim": 8, "num_heads": 1, "stages": (1, 1, 2, 1), "num_classes": 3}
    return models.create("hiera_tiny_224", **sizes, **options, rngs=nnx.Rngs(0))


def test_the_published_small_swin():
    file = golden("mim/timm_swin")
    image, patch, width, window, classes = (int(value) for value in file["cfg"])
    sizes = {"img_size": image, "patch_size": patch, "embed_dim": width, "window_size": window, "num_classes": classes}
    stages = {"depths": tuple(map(int, file["depths"])), "num_heads": tuple(map(int, file["heads"]))}
    model = models.create("swin", **sizes, **stages, mlp_ratio=float(file["mlp_ratio"]), rngs=nnx.Rngs(0))
    checkpoints.load_pretrained(model, weights(file))
    logits = quickly(model, lambda model, images: model(images)[0])(jnp.asarray(nhwc(file["imgs"])))
    chex.assert_trees_all_close(logits, file["logits"], atol=5e-5)


@pytest.mark.parametrize(("make", "mask_block"), [(swin, 3), (convnext, 2), (hiera, 4)])
def test_a_scorer_guides_the_stages_of_mask_block(make, mask_block):
    model = make()
    plan = Plan("from_scores", 0.65, mask_block=mask_block)
    scorer = scoring.create("centre", grid=model.grid)
    size = 64
    fast = reduction.apply(model, plan, scorer=scorer, img_size=size)
    stages = {1: (2,), 2: (2, 3), 3: (1, 2, 3), 4: (0, 1, 2, 3)}[mask_block]
    pruned = {site.stage for site in fast.sites(size) if fast.block(site).reducer is not None}
    assert pruned == set(stages)
    dense = flops.host(model, img_size=size)
    counted = flops.host(fast, img_size=size)
    assert counted == flops.host(model, plan, scorer=scorer, img_size=size) and counted.total < dense.total
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, size, size, 3)), jnp.float32)
    logits, aux = quickly(fast, lambda model, images: model(images))(images)
    assert logits.shape == (2, 3) and len(aux.steps) == sum(site.stage in stages for site in fast.sites(size))


def test_hiera_has_no_attention_to_read_and_whole_units():
    with pytest.raises(UserError, match=r"topk reads cls_attn of a block's attention, and blocks\.1 has none"):
        reduction.apply(hiera(), Plan("topk", 0.5, (1,)))
    with pytest.raises(UserError, match=r"img_size 48x64 is no whole number of mask units of 32 pixels"):
        models.create("hiera_tiny_224", img_size=(48, 64), rngs=nnx.Rngs(0))


def test_mask_block_is_for_four_stages():
    vit = models.create("vit", img_size=16, patch_size=4, embed_dim=8, depth=2, num_heads=1, rngs=nnx.Rngs(0))
    scorer = scoring.create("centre", grid=vit.grid)
    with pytest.raises(UserError, match="mask_block=2 is for a network with stages"):
        reduction.apply(vit, Plan("from_scores", 0.5, mask_block=2), scorer=scorer)
    with pytest.raises(UserError, match="mask_block=7 is none of 1, 2, 3, 4"):
        reduction.apply(swin(), Plan("from_scores", 0.5, mask_block=7), scorer=scoring.create("centre", grid=(16, 16)))


def test_files_of_swins_own_repository_stand_for_timms():
    first, second = swin(), swin()
    upstream = {}
    for name, tensor in to_published(first).items():
        stage = name.split(".")[1] if ".downsample." in name else ""
        name = name.replace(f"layers.{stage}.", f"layers.{int(stage) - 1}.") if stage else name
        upstream[name.replace("head.fc", "head")] = tensor + 1
    upstream["layers.0.blocks.0.attn.relative_position_index"] = np.zeros((16, 16), np.int64)
    checkpoints.load_pretrained(second, upstream)
    for name, variable in variables(second).items():
        np.testing.assert_array_equal(np.asarray(variable[...]), np.asarray(variables(first)[name][...]) + 1)


def test_files_of_convnexts_own_repository_stand_for_timms():
    first, second = convnext(use_grn=True), convnext(use_grn=True)
    table = {
        "conv_dw": "dwconv",
        "mlp.fc1": "pwconv1",
        "mlp.fc2": "pwconv2",
        ".blocks.": ".",
        "mlp.grn.weight": "grn.gamma",
    }
    table |= {"mlp.grn.bias": "grn.beta", "stem.": "downsample_layers.0.", "head.norm": "norm", "head.fc": "head"}
    upstream = {}
    for name, tensor in to_published(first).items():
        if ".downsample." in name:
            name = name.replace("stages.", "downsample_layers.").replace(".downsample.", ".")
        for theirs, ours in table.items():
            name = name.replace(theirs, ours)
        upstream[name] = tensor.reshape(1, 1, 1, -1) + 1 if ".grn." in name else tensor + 1
    checkpoints.load_pretrained(second, upstream)
    for name, variable in variables(second).items():
        np.testing.assert_array_equal(np.asarray(variable[...]), np.asarray(variables(first)[name][...]) + 1)


def test_convnext_takes_images_of_any_size_and_says_when_they_are_too_small():
    model = convnext()
    assert [site.grid for site in model.sites((70, 100))][-1] == (2, 3)
    with pytest.raises(UserError, match="leave nothing of the last map: use 32 or more"):
        model(jnp.zeros((1, 16, 64, 3)))
