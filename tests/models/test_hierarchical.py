"""Swin and ConvNeXt: published blocks under PaPr's masks, files of their own repositories, and what refuses."""

import ast
import json
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, nhwc, quickly, weights

from jaxprune import checkpoints, flops, models, reduction, scoring
from jaxprune.errors import UserError
from jaxprune.models.convnext import TINY, ConvNeXt, ConvNeXtBlock, preprocessing
from jaxprune.nn.params import merge, split, variables
from jaxprune.nn.run_blocks import on_grid
from jaxprune.nn.swin_block import SwinBlock
from jaxprune.nn.tokens import NOTHING, Attended, on_map
from jaxprune.nn.windows import Windows
from jaxprune.reduction import Plan
from jaxprune.reduction.from_scores import FromScores
from jaxprune.reduction.parts.base import Step
from jaxprune.train import optimizer
from jaxprune.weights.rules import to_published

BLOCKS = golden("ltrp_papr/papr_hierarchical_blocks")
CONFIG = json.loads(str(BLOCKS["config_json"]))
GRID, CHANNELS = (CONFIG["grid"],) * 2, CONFIG["channels"]
B = len(BLOCKS["idx_keep"])


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
    kept = CONFIG["n_keep"], CONFIG["keep_ratio"]
    step = Step(0, 0, GRID, 0, math.prod(GRID), *kept, CHANNELS, CONFIG["swin"]["heads"], removable=False)
    block.reducer = nnx.data(FromScores(step))
    block.needs = frozenset({"scores"})
    return block


def significance():
    maps = jnp.asarray(BLOCKS["psm_small"])
    return Attended(scores=on_grid(maps.reshape(B, -1), maps.shape[2:], GRID))


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
    sizes = {"windows": windows, "mlp_ratio": float(options["mlp_ratio"])}
    block = SwinBlock(CHANNELS, options["heads"], **sizes, rngs=nnx.Rngs(0))
    fill(block, f"swin_shift{shift}_w/", {})
    tokens = on_map(jnp.asarray(BLOCKS[f"swin_shift{shift}_x"]), GRID)
    dense, *_ = run(block, tokens)
    chex.assert_trees_all_close(np.float64(dense.x), BLOCKS[f"swin_shift{shift}_out_dense_f64"], atol=1e-5)
    pruned, _, report = run(masked(block), tokens, significance())
    chex.assert_trees_all_close(np.float64(pruned.x), BLOCKS[f"swin_shift{shift}_out_masked_f64"], atol=1e-5)
    assert np.sum(np.asarray(report.row_map) >= 0) == B * CONFIG["n_keep"]


@pytest.mark.parametrize("train", [False, True])
def test_a_block_of_convnext(train):
    block = ConvNeXtBlock(CHANNELS, gamma=1.0, rngs=nnx.Rngs(0))
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
    tokens = on_map(maps.reshape(B, -1, CHANNELS), GRID)
    on = lambda found: np.float64(found.x).reshape(B, *GRID, CHANNELS)
    dense, *_ = run(block, tokens)
    chex.assert_trees_all_close(on(dense), nhwc(BLOCKS["convnext_out_dense_f64"]), atol=1e-5)
    pruned, *_ = run(masked(block), tokens, significance(), train=train)
    name = "convnext_out_masked_trainmode_f64" if train else "convnext_out_masked_f64"
    chex.assert_trees_all_close(on(pruned), nhwc(BLOCKS[name]), atol=1e-5)


def swin(**options):
    sizes = {"img_size": 64, "window_size": 4, "embed_dim": 8, "depths": (1, 1, 2, 1), "num_heads": (1, 1, 2, 2)}
    return models.create("swin_tiny_patch4_window7_224", **{**sizes, "num_classes": 3, **options}, rngs=nnx.Rngs(0))


def convnext(**options):
    sizes = {"depths": (1, 1, 2, 1), "dims": (8, 8, 16, 16), "num_classes": 3}
    return models.create("convnext_tiny", **sizes, **options, rngs=nnx.Rngs(0))


def hiera(**options):
    sizes = {"img_size": 64, "embed_dim": 8, "num_heads": 1, "stages": (1, 1, 2, 1), "num_classes": 3}
    return models.create("hiera_tiny_224", **{**sizes, **options}, rngs=nnx.Rngs(0))


def test_the_published_small_swin():
    file = golden("mim/timm_swin")
    image, patch, width, window, classes = (int(value) for value in file["cfg"])
    sizes = {"img_size": image, "patch_size": patch, "embed_dim": width, "window_size": window, "num_classes": classes}
    stages = {"depths": tuple(map(int, file["depths"])), "num_heads": tuple(map(int, file["heads"]))}
    model = models.create("swin", **sizes, **stages, mlp_ratio=float(file["mlp_ratio"]), rngs=nnx.Rngs(0))
    checkpoints.load_pretrained(model, weights(file))
    logits = quickly(model, lambda model, images: model(images)[0])(jnp.asarray(nhwc(file["imgs"])))
    chex.assert_trees_all_close(logits, file["logits"], atol=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "mask_block"), [pytest.param(swin, 3, marks=pytest.mark.slow), (convnext, 2)])
def test_a_scorer_guides_the_stages_of_mask_block(make, mask_block):
    model = make()
    plan = Plan("from_scores", 0.65, mask_block=mask_block)
    scorer = scoring.create("centre", grid=model.grid)
    size = 64
    fast = reduction.apply(model, plan, scorer=scorer, img_size=size)
    stages = {2: (2, 3), 3: (1, 2, 3)}[mask_block]
    pruned = {site.stage for site in fast.sites(size) if fast.block(site).reducer is not None}
    assert pruned == set(stages)
    dense = flops.of_model(model, img_size=size)
    counted = flops.of_model(fast, img_size=size)
    assert counted == flops.of_model(model, plan, scorer=scorer, img_size=size) and counted.total < dense.total
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, size, size, 3)), jnp.float32)
    logits, aux = quickly(fast, lambda model, images: model(images))(images)
    assert logits.shape == (2, 3) and len(aux.steps) == sum(site.stage in stages for site in fast.sites(size))


def test_hiera_has_no_attention_to_read_and_whole_units():
    with pytest.raises(UserError, match=r"topk reads cls_attn of a block's attention, and blocks\.1 has none"):
        reduction.apply(hiera(), Plan("topk", 0.5, (1,)))
    with pytest.raises(UserError, match=r"img_size 48x64 is not a whole number of mask units of 32 pixels"):
        models.create("hiera_tiny_224", img_size=(48, 64), rngs=nnx.Rngs(0))


class Fixed(scoring.Scorer):
    """The same scores for all images, or for each its own."""

    def __init__(self, scores, **options):
        super().__init__(**options)
        self.scores = nnx.Param(jnp.asarray(scores, jnp.float32))

    def __call__(self, images, *, key=None):
        return jnp.broadcast_to(self.scores[...], (images.shape[0], self.num_patches))


@pytest.mark.slow
def test_mask_units_leave_hiera_as_in_its_pre_training():
    file = golden("hosts/hiera_units")
    options = ast.literal_eval(str(file["options"]))
    model = checkpoints.load_pretrained(models.create(str(file["name"]), **options, rngs=nnx.Rngs(0)), weights(file))
    (b, units), kept, grid = file["units"].shape, int(file["units"][0].sum()), model.sites()[-1].grid
    plan, scorer = Plan("from_scores", num_keep=(kept,)), Fixed(file["units"], grid=grid)
    fast = reduction.apply(model, plan, scorer=scorer)
    call = lambda model, images: (model(images), model.forward_intermediates(images, intermediates_only=True))
    (logits, aux), maps = quickly(fast, call)(jnp.asarray(nhwc(file["images"])))
    chex.assert_trees_all_close(np.float64(logits), file["masked_logits"], atol=1e-4)
    chex.assert_trees_all_close(np.float64(aux.tokens.x), file["masked_features"], atol=1e-4)
    np.testing.assert_array_equal(aux.kept[0], [np.flatnonzero(row) for row in file["units"]])
    for index, found in enumerate(maps):
        expected = file[f"masked_map_{index}"]
        rows, columns = expected.shape[2:4]
        cells = np.asarray(found).reshape(b, grid[0], rows, grid[1], columns, -1).swapaxes(2, 3)
        cells = cells.reshape(b, units, *expected.shape[2:])
        for image in range(b):
            stay = file["units"][image].astype(bool)
            chex.assert_trees_all_close(np.float64(cells[image][stay]), expected[image], atol=1e-4)
            assert not cells[image][~stay].any()
    assert fast.step_grids() == (grid,) and aux.assign[0].shape == (b, units)
    counted, dense = flops.of_model(fast), flops.of_model(model)
    assert counted == flops.of_model(model, plan, scorer=scorer)
    assert counted.total < (kept / units + 0.05) * dense.total
    # As large a share of the units, and so of the keys where attention is among all rows.
    assert [rows * units for rows in counted.tokens] == [rows * kept for rows in dense.tokens]


@pytest.mark.slow
def test_hiera_with_all_mask_units_is_dense_to_the_bit():
    model, images = hiera(), jnp.asarray(np.random.default_rng(0).normal(size=(1, 64, 64, 3)), jnp.float32)
    # Scores of the patches are resampled to mask units.
    whole, half = (
        reduction.apply(model, Plan("from_scores", rate), scorer=scoring.create("centre", grid=model.grid))
        for rate in (1.0, 0.5)
    )
    logits = lambda model, images: model(images)[0]
    np.testing.assert_array_equal(quickly(whole, logits)(images), quickly(model, logits)(images))
    assert half.pruner.num_tokens() == 2 and half.pruner.step.grid == (2, 2)
    both = [reduction.Plan("from_scores", 0.5), Plan("random", 0.5, (1,))]
    with pytest.raises(UserError, match="random at block 1 needs the whole map, and from_scores leaves 2 of 4 mask un"):
        reduction.apply(model, both, scorer=scoring.create("centre", grid=(2, 2)))
    with pytest.raises(UserError, match="mask_block=2 is for hierarchical networks; leave it out"):
        reduction.apply(model, Plan("from_scores", 0.5, mask_block=2), scorer=scoring.create("centre", grid=(2, 2)))


@pytest.mark.slow
def test_the_compiler_counts_the_mask_units_that_are_left():
    scorer = scoring.create("centre", grid=(4, 4))
    model = nnx.eval_shape(lambda: hiera(img_size=128, embed_dim=64))
    model = reduction.apply(model, Plan("from_scores", 0.25), scorer=scorer)
    parts = split(model)
    program = jax.jit(lambda params, rest, images: merge(parts.graph, params, rest)(images)[0])
    images = jax.ShapeDtypeStruct((4, 128, 128, 3), jnp.float32)
    found = flops.compiled_flops(program, parts.params, parts.rest, images)
    np.testing.assert_allclose(found, 4 * flops.of_model(model).total, rtol=0.1)


LAYERS = {
    swin: {
        "patch_embed.proj.kernel": 0,
        "layers.0.blocks.0.norm1.scale": 1,
        # As SimMIM counts what its files have at the end of the stage before.
        "layers.1.downsample.norm.scale": 1,
        "layers.1.blocks.0.attn.qkv.kernel": 2,
        "layers.3.downsample.reduction.kernel": 4,
        "layers.3.blocks.0.mlp.fc1.kernel": 5,
        "norm.scale": 6,
        "head.fc.kernel": 6,
    },
    convnext: {
        "stem.0.kernel": 0,
        "stem.1.scale": 0,
        "stages.0.blocks.0.gamma": 1,
        "stages.1.downsample.1.kernel": 2,
        "stages.2.blocks.1.conv_dw.kernel": 4,
        "stages.3.downsample.0.scale": 5,
        "head.norm.scale": 6,
        "head.fc.bias": 6,
    },
    hiera: {
        "pos_embed": 0,
        "patch_embed.proj.bias": 0,
        "blocks.0.norm1.scale": 1,
        "blocks.4.proj.kernel": 5,
        "head.norm.bias": 6,
    },
}
DECAYED = {swin: "relative_position_bias_table", convnext: "", hiera: "pos_embed"}


@pytest.mark.parametrize("make", LAYERS)
def test_layers_and_weight_decay_of_fine_tuning(make):
    model = nnx.eval_shape(make)
    params = split(model).params
    layers = model.parameter_layers(params)
    assert {name: layers[name] for name in LAYERS[make]} == LAYERS[make]
    assert set(layers.values()) == set(range(7)) and layers.keys() == params.keys()
    decays = optimizer.decay_mask(params, model.no_decay)
    matrices = {name for name, value in params.items() if value.ndim > 1}
    left_out = {name for name in matrices if not decays[name]}
    assert matrices - left_out == {name for name in decays if decays[name]}
    assert bool(left_out) == bool(DECAYED[make]) and all(name.endswith(DECAYED[make]) for name in left_out)


def test_weight_decay_leaves_out_what_v2_biases_and_scales_by():
    params = split(nnx.eval_shape(lambda: swin(version=2))).params
    decays = optimizer.decay_mask(params, models.swin.SwinTransformer.no_decay)
    wanted = {name for name in params if "cpb_mlp" in name or "logit_scale" in name}
    assert len(wanted) == 4 * 5 and not any(decays[name] for name in wanted)


def test_windows_of_each_stage():
    model = nnx.eval_shape(lambda: swin(window_size=(2, 4, 4, 2)))
    assert [stage.blocks[0].windows.size for stage in model.layers] == [(2, 2), (4, 4), (4, 4), (2, 2)]
    assert nnx.eval_shape(lambda: swin(window_size=(2, 4))).layers[1].blocks[0].windows.size == (2, 4)
    with pytest.raises(UserError, match=r"window_size=\(2, 4, 4\) has 3 stages, but there are 4"):
        swin(window_size=(2, 4, 4))
    assert models.arguments("swin_s3_base_224")["depths"] == (2, 2, 30, 2)


def test_mask_block_is_for_four_stages():
    vit = models.create("vit", img_size=16, patch_size=4, embed_dim=8, depth=2, num_heads=1, rngs=nnx.Rngs(0))
    scorer = scoring.create("centre", grid=vit.grid)
    with pytest.raises(UserError, match="mask_block=2 is for hierarchical networks"):
        reduction.apply(vit, Plan("from_scores", 0.5, mask_block=2), scorer=scorer)
    with pytest.raises(UserError, match="mask_block=7 is none of 1, 2, 3, 4"):
        reduction.apply(swin(), Plan("from_scores", 0.5, mask_block=7), scorer=scoring.create("centre", grid=(16, 16)))


@pytest.mark.slow
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
    with pytest.raises(UserError, match="too small for the last map: use 32 or more"):
        model(jnp.zeros((1, 16, 64, 3)))


@pytest.mark.parametrize(
    ("name", "side", "crop", "crop_pct", "std"),
    [
        ("convnext_tiny.in12k_ft_in1k", 224, "center", 0.95, 0.229),
        ("convnext_tiny.fb_in1k", 224, "center", 0.875, 0.229),
        ("convnext_nano.r384_in12k_ft_in1k", 384, "center", 1.0, 0.229),
        ("convnext_base.fb_in22k_ft_in1k_384", 384, "none", 1.0, 0.229),
        ("convnext_base.clip_laiona_augreg_ft_in1k_384", 384, "center", 1.0, 0.26862954),
        ("convnext_base.clip_laiona_320", 320, "center", 1.0, 0.26862954),
        ("convnext_xxlarge.clip_laion2b_soup_ft_in1k", 256, "center", 1.0, 0.26862954),
        ("convnextv2_huge.fcmae_ft_in22k_in1k_384", 384, "none", 1.0, 0.229),
        ("convnextv2_huge.fcmae_ft_in22k_in1k_512", 512, "none", 1.0, 0.229),
        ("convnextv2_huge.fcmae", 224, "center", 0.875, 0.229),
    ],
)
def test_images_of_a_convnext_are_prepared_as_for_timms_file(name, side, crop, crop_pct, std):
    prepared = models.create(name, **TINY, rngs=nnx.Rngs(0)).preprocessing
    assert (prepared.img_size, prepared.crop, prepared.crop_pct, prepared.std[0]) == ((side, side), crop, crop_pct, std)


@pytest.mark.parametrize(
    "tagged",
    [
        "convnext_small.in12k_ft_in1k",
        "convnext_xxlarge.clip_laion2b_soup_ft_in1k",
        "convnextv2_huge.fcmae_ft_in22k_in1k_384",
    ],
)
def test_the_default_of_a_convnext_is_one_of_timms_files(tagged):
    prepared = [preprocessing(name, {}) for name in (tagged, tagged.partition(".")[0])]
    assert prepared[0] == prepared[1]


def test_a_tag_changes_no_preprocessing_where_a_module_has_none():
    of_tags = lambda module: module.NETWORK is ConvNeXt or not hasattr(module, "preprocessing")
    for module in models._modules():
        variants = {} if of_tags(module) else module.variants()
        tagged = {name.partition(".")[0] for name in variants if "." in name}
        for name, arguments in variants.items():
            if name.partition(".")[0] not in tagged:
                assert module.preprocessing(f"{name}.in1k", arguments) == module.preprocessing(name, arguments), name
