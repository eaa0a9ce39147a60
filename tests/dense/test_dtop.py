"""DToP against the published numbers; masks, buckets and removal; PaPr in its place."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, golden_names, in_names, quick_compile, quickly, weights
from support import nhwc as channels_last

from jaxprune import checkpoints, dense, flops, models, reduction, scoring
from jaxprune.dense.parts.token_exits import confident, left_aligned, lowest
from jaxprune.errors import UserError
from jaxprune.flops.segmenters import of_exits
from jaxprune.nn.params import merge, split, unfilled
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import Plan
from jaxprune.weights.rules import to_published

PARTS = {"classes": "ce", "masks": "mask", "dice": "dice"}
NAMES = golden_names("dynamic/dtop*")


def close(array, expected, tolerance=1e-4):
    expected = np.asarray(expected)
    np.testing.assert_allclose(array, expected, atol=tolerance * (1 + np.abs(expected).max()), rtol=0)


def published(name, **arguments):
    file = golden(name)
    sizes = json.loads(str(file["config_json"]))
    encoder = {key: sizes[key] for key in ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio")}
    encoder["mlp_ratio"] = float(encoder["mlp_ratio"])
    heads = {"features": sizes["head_dim"], "head_heads": sizes["head_heads"], "layers": sizes["layers_per_decoder"]}
    model = dense.create(
        "dtop",
        encoder="vit",
        num_classes=sizes["num_classes"],
        indices=sizes["out_indices"],
        class_token=False,
        norm_eps=sizes["ln_eps_backbone"],
        **{"keep_per_class": sizes["keep_per_class"], **heads, **encoder, **arguments},
        rngs=nnx.Rngs(0),
    )
    pixels = (channels_last(file["images_u8"]).astype(np.float32) - 127.5) / 64
    return file, checkpoints.load_pretrained(model, weights(file)), jnp.asarray(pixels)


def thresholds(file):
    return file["thresholds"].tolist()[:-1]


def stages_of(model, images):
    return quickly(model, lambda model, images: model.stages(images))(images)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_without_exits(name):
    file, model, images = published(name, thresholds=1.0)
    outputs = stages_of(model, images)
    for i, output in enumerate(outputs):
        close(output.masks, file[f"dense/mask_logits_head{i}_f64"])
        close(output.class_logits, file[f"dense/class_logits_head{i}_f64"])
        close(output.scores, file[f"dense/score_head{i}_f64"])
        assert not output.exited.any()
    scores = model.segment(outputs[-1], images.shape[1:3])
    check_segmentation(scores, file["dense/segmentation"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_heads_of_a_frozen_encoder_say_what_they_say_without_exits(name):
    _, model, images = published(name, thresholds=0.5)
    of_maps = quickly(model, lambda model, images: model.head_logits(model.features(images)))(images)
    for output, expected in zip(of_maps, stages_of(model.without_exits(), images), strict=True):
        close(output.class_logits, expected.class_logits, 1e-5)
        close(output.masks, expected.masks, 1e-5)
        np.testing.assert_array_equal(output.num_tokens, expected.num_tokens)
        assert not output.exited.any()


def check_segmentation(scores, expected):
    """The classes, where the two best differ: resized scores can tie."""
    best = np.sort(np.asarray(scores), axis=-1)
    sure = best[..., -1] - best[..., -2] > 1e-5
    assert sure.mean() > 0.9
    np.testing.assert_array_equal(np.asarray(scores).argmax(-1)[sure], expected[sure])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_exits(name):
    file = golden(name)
    file, model, images = published(name, thresholds=thresholds(file))
    outputs = stages_of(model, images)
    blocks = [tokens for output in outputs for tokens in output.blocks]
    for i, output in enumerate(outputs):
        np.testing.assert_array_equal(output.exited, file[f"exited_after_head{i}"])
        close(output.masks, file[f"canvas_head{i}_f64"])
        close(output.class_logits, file[f"class_logits_head{i}_f64"])
        close(output.scores, file[f"score_head{i}_f64"])
    for i in in_names(file, r"tokens_after_block(\d+)_f64"):
        close(blocks[int(i)], file[f"tokens_after_block{i}_f64"])
    scores = model.segment(outputs[-1], images.shape[1:3])
    close(scores, channels_last(file["pred_f64"]))
    check_segmentation(scores, file["segmentation"])
    counts = [np.asarray(output.num_tokens) for output in outputs]
    for i, count in enumerate(counts[1:]):
        np.testing.assert_array_equal(count, (~file[f"exited_after_head{i}"]).sum(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_losses(name):
    file = golden(name)
    file, model, images = published(name, thresholds=thresholds(file))
    parts, labels = split(model), jnp.asarray(file["labels"])

    def loss(params):
        network = merge(parts.graph, params, parts.rest)
        outputs = network.stages(images)
        total, aux = network.loss_of(outputs, labels)
        return total, (aux.losses, outputs)

    step = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=quick_compile())
    (total, (losses, outputs)), grads = step(parts.params)
    maps = file["loss/pred_masks_head0_f64"]
    close(outputs[0].masks.reshape(maps.shape), maps)
    assert len(losses) == len(in_names(file, r"loss/(head\d+/loss_.+)_f64"))
    for key, value in losses.items():
        part, _, stage = key.partition("_")
        head = stage or str(len(outputs) - 1)
        close(value, file[f"loss/head{head}/loss_{PARTS[part]}_f64"])
    close(total, file["loss/total_f64"])
    named = to_published(merge(parts.graph, grads, parts.rest))
    table = {"ln1": "norm1", "ln2": "norm2", "attn.attn.in_proj_": "attn.qkv.", "attn.attn.out_proj": "attn.proj"}
    table |= {"ffn.layers.0.0": "mlp.fc1", "ffn.layers.1": "mlp.fc2", "layers.": "blocks.", "projection": "proj"}
    for key in in_names(file, r"grad/(.+)_f64"):
        value, ours = file[f"grad/{key}_f64"], key
        if key.startswith("backbone."):
            for theirs, timm in table.items():
                ours = ours.replace(theirs, timm)
        if key == "backbone.cls_token":
            continue
        value = value[:, 1:] if key == "backbone.pos_embed" else value
        np.testing.assert_allclose(named[ours], value, atol=1e-3 * np.abs(value).max(), rtol=0, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_buckets_and_removal_equal_masks(name):
    file = golden(name)
    file, model, images = published(name, thresholds=thresholds(file))
    expected = quickly(model, lambda model, images: model(images))(images)
    engine = dense.TokenEngine(model)
    np.testing.assert_allclose(engine(images), expected, atol=1e-5)
    # Image by image, only what goes on is there: removal, as published.
    left = [(~file[f"exited_after_head{i}"]).sum(1) for i in range(len(model.heads) - 1)]
    exact = dense.TokenEngine(model, buckets=sorted({int(count) for counts in left for count in counts}))
    for image in range(len(images)):
        np.testing.assert_allclose(exact(images[image : image + 1]), expected[image : image + 1], atol=1e-5)
        assert exact.rows[1:] == [int(counts[image]) for counts in left]


SIZES = {"img_size": (24, 32), "patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2}
SWIN = "swin_tiny_patch4_window7_224"
SMALL = {"features": 8, "head_heads": 2, "layers": 1, "num_classes": 5}


def small(encoder="vit", **arguments):
    return dense.create("dtop", encoder=encoder, **{**SIZES, **SMALL, **arguments}, rngs=nnx.Rngs(0))


def images_of(batch=2):
    return jax.random.normal(jax.random.key(0), (batch, *SIZES["img_size"], 3))


class Pixels(nnx.Module):
    """A proposal whose features are every second pixel along each side."""

    def forward_features(self, images):
        return images[:, ::2, ::2]


def papr(model, proposal=None):
    return scoring.create("papr", proposal=proposal or Pixels(), grid=model.encoder.grid)


STYLES = {"rotary": {"style": "dinov3_swiglu", "pos_embed": "none", "reg_tokens": 2, "qkv_bias": "qv"}, "plain": {}}


@pytest.mark.slow
@pytest.mark.parametrize("style", [pytest.param("rotary", marks=pytest.mark.slow), "plain"])
@pytest.mark.parametrize("rates", [(0.5, 0.25), (1.0, 1.0)])
def test_papr_in_its_place(style, rates):
    """Behind each head the best tokens of the map go on; a share of 1 gives the numbers without exits."""
    model = small(exits="scores", keep_rates=rates, **STYLES[style])
    images = images_of()
    with_map = reduction.apply(model, Plan("from_scores", keep_rate=1.0), scorer=papr(model))
    outputs = stages_of(with_map, images)
    patches = with_map.encoder.sites()[0].num_patches
    counts = [patches, *(int(patches * rate) for rate in rates)]
    assert [output.num_tokens.tolist() for output in outputs] == [[count] * len(images) for count in counts]
    without = stages_of(small(thresholds=1.0, **STYLES[style]), images)
    if min(rates) == 1:
        np.testing.assert_allclose(outputs[-1].scores, without[-1].scores, atol=1e-6)
        return
    np.testing.assert_allclose(outputs[0].scores, without[0].scores, atol=1e-6)
    best = reduction.best(papr(model)(images), counts[1])
    for image in range(len(images)):
        stays = np.flatnonzero(~np.asarray(outputs[0].exited)[image])
        np.testing.assert_array_equal(stays, np.sort(best[image]))
    # Mask logits of what left stay those of the head where it left.
    gone = np.asarray(outputs[0].exited)[:, None, :]
    np.testing.assert_array_equal(np.where(gone, outputs[-1].masks, 0), np.where(gone, outputs[0].masks, 0))
    engine = dense.TokenEngine(with_map, buckets=counts[1:])
    expected = quickly(with_map, lambda model, images: model(images))(images)
    np.testing.assert_allclose(engine(images), expected, atol=1e-5)
    assert engine.rows == counts


@pytest.mark.slow
@pytest.mark.parametrize("restore", ["zero", pytest.param("fuse", marks=pytest.mark.slow)])
def test_pruned_before_its_first_block(restore):
    model = small(thresholds=0.2, keep_per_class=2)
    fast = reduction.apply(model, Plan("from_scores", keep_rate=0.5, restore=restore), scorer=papr(model))
    images = images_of()
    outputs = stages_of(fast, images)
    patches = model.encoder.sites()[0].num_patches
    assert outputs[0].num_tokens.tolist() == [patches // 2] * 2 and outputs[1].num_tokens.max() <= patches // 2
    seen = np.abs(np.asarray(outputs[-1].masks)).sum(1) > 0
    assert seen.all() if restore == "fuse" else (seen.sum(1) == patches // 2).all()
    engine = dense.TokenEngine(fast)
    expected = quickly(fast, lambda model, images: model(images))(images)
    np.testing.assert_allclose(engine(images), expected, atol=1e-5)


@pytest.mark.slow
def test_saved_with_its_scorer(tmp_path):
    model = small(exits="scores", keep_rates=(0.5, 0.25))
    proposal = models.create("mobileone_s0", **models.tiny("mobileone_s0"), num_classes=3, rngs=nnx.Rngs(1))
    fast = reduction.apply(model, Plan("from_scores", keep_rate=0.75), scorer=papr(model, proposal))
    checkpoints.save_model(fast, tmp_path / "seg.safetensors")
    loaded = checkpoints.load_model(tmp_path / "seg.safetensors")
    images = images_of(1)
    call = lambda network: quickly(network, lambda model, images: model(images))(images)
    np.testing.assert_array_equal(call(loaded), call(fast))


def test_the_rule_of_confidence_by_hand():
    """Five of a class stay, the best ones; of equal scores, the first."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = rng.integers(0, 6, (2, 3, 40)) / 6
        present = rng.random((2, 40)) < 0.8
        leaving = np.asarray(confident(jnp.asarray(scores), jnp.asarray(present), 0.4, 5))
        for image in range(2):
            best, classes = scores[image].max(0), scores[image].argmax(0)
            expected = present[image] & (best > 0.4)
            for number in range(3):
                own = [token for token in range(40) if present[image, token] and classes[token] == number]
                expected[sorted(own, key=lambda token: (-best[token], token))[:5]] = False
            np.testing.assert_array_equal(leaving[image], expected)


@pytest.mark.slow
def test_rows_by_given_scores_and_left_alignment():
    tokens = all_present(jnp.arange(8.0).reshape(1, 8, 1), 1)
    present = jnp.asarray([[True, True, False, True, True, False, True]])
    scores = jnp.asarray([[0.1, 0.9, 1.0, 0.3, 0.3, 0.8, 0.2]])
    leaving = lowest(scores, tokens.assign, present, 3)
    assert np.flatnonzero(leaving[0]).tolist() == [0, 6]
    tokens = tokens._replace(policy=jnp.pad((present & ~leaving) * 1.0, ((0, 0), (1, 0)), constant_values=1))
    aligned = left_aligned(tokens, 4, 1)
    assert aligned.x[0, :, 0].tolist()[:4] == [0, 2, 4, 5] and aligned.policy[0].tolist() == [1, 1, 1, 1, 0]
    assert aligned.assign[0].tolist()[1] == 0 and aligned.assign[0].tolist()[3:5] == [1, 2]


@pytest.mark.slow
def test_the_cost_of_counts():
    """SegViT with ViT-B at 512 pixels: 2.54 billion a head and 106.9 the backbone, as published."""
    sizes = {"img_size": 512, "class_token": False}
    model = nnx.eval_shape(lambda: dense.create("dtop", encoder="vit_base_patch16_224", **sizes, rngs=nnx.Rngs(0)))
    assert model.indices == (5, 7, 11)
    assert model.heads[0].flops(1024) / 1e9 == pytest.approx(2.54, abs=0.01)
    backbone = flops.of_model(model.encoder).total / 1e9
    assert of_exits(model, [1024] * 3).total / 1e9 == pytest.approx(backbone + 3 * 2.54, abs=0.05)
    assert backbone == pytest.approx(106.9, abs=0.2)


BAD = {
    "thresholds": (lambda: small(thresholds=(0.9,)), r"thresholds=\(0\.9,\): give 2 numbers above 0"),
    "exits": (lambda: small(exits="score"), "exits 'score'. Did you mean 'scores'"),
    "indices": (lambda: small(indices=(0, 1, 2)), "the last at block 3"),
    "no indices": (lambda: small(indices=()), "the last at block 3"),
    "tokens a class": (lambda: small(keep_per_class=-1), "keep_per_class=-1 is not a number of tokens"),
    "heads": (lambda: small(head_heads=3), r"features=\d+ is not divisible by head_heads=3"),
    "layers": (lambda: small(layers=0), "layers=0: a decoder has one layer or more"),
    "steps behind": (
        lambda: reduction.apply(small(), Plan("topk", keep_rate=0.5, reduction_loc=(3,))),
        "heads say what leaves, and the plan has a step at block 3",
    ),
    "no scorer": (lambda: small(exits="scores", keep_rates=0.5)(images_of()), "need a scorer"),
    "bucket": (lambda: dense.TokenEngine(small(), buckets=(0, 4)), "numbers of rows are 1 or more"),
    "windows": (
        lambda: unfilled(lambda: dense.create("dtop", encoder=SWIN, **SMALL, rngs=nnx.Rngs(0))),
        "Tokens cannot leave this encoder",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused(case):
    make, message = BAD[case]
    with pytest.raises(UserError, match=message):
        make()
