"""UPerNet, its heads and its neck against the published numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import assert_gradients, depth_of, golden, golden_names, in_names, quick_compile, slow_but, weights
from support import nhwc as channels_last

from jaxprune import checkpoints, dense, reduction
from jaxprune.dense.parts.fcn_head import FCNHead
from jaxprune.dense.parts.published import HEAD
from jaxprune.dense.parts.uper_head import UPerHead
from jaxprune.dense.parts.vit_pyramid import default_indices
from jaxprune.errors import UserError
from jaxprune.losses import pixel_accuracy, pixel_cross_entropy
from jaxprune.nn.params import merge, split, variables
from jaxprune.nn.relative_bias import relative_bias
from jaxprune.nn.tensor_rules import within
from jaxprune.ops.resize import resize
from jaxprune.weights.rules import to_published

LOSSES = {"decode": "decode", "auxiliary": "aux"}


def nhwc(array):
    return jnp.asarray(channels_last(array))


def close(array, expected, tolerance=1e-4):
    expected = np.asarray(expected)
    np.testing.assert_allclose(array, expected, atol=tolerance * np.abs(expected).max(), rtol=0)


def maps(file, prefix):
    return [nhwc(file[f"{prefix}{i}"]) for i in in_names(file, rf"{prefix}(\d+)")]


def head_sizes(tensors):
    (classes, features), auxiliary = (
        tensors[f"{head}_head.conv_seg.weight"].shape[:2] for head in ("decode", "auxiliary")
    )
    return {"num_classes": classes, "features": features, "auxiliary_features": auxiliary[1], "dropout": 0.0}


def published(name="dense/seg_full"):
    file = golden(name)
    tensors = weights(file)
    width, _, patch, _ = tensors["backbone.patch_embed.proj.weight"].shape
    sizes = {
        "img_size": file["in/image"].shape[2:],
        "patch_size": patch,
        "embed_dim": width,
        "depth": depth_of(tensors, "backbone."),
        "num_heads": tensors["backbone.blocks.0.attn.relative_position_bias_table"].shape[1],
        "mlp_ratio": tensors["backbone.blocks.0.mlp.fc1.bias"].size / width,
    }
    arguments = {**sizes, **head_sizes(tensors), "style": "beit", "init_values": 1.0}
    model = dense.create("upernet", encoder="vit", **arguments, rngs=nnx.Rngs(0))
    return file, with_blocks_of(file, checkpoints.load_pretrained(model, tensors))


def with_blocks_of(file, model):
    """A network that reads the blocks whose maps, after the neck, are those of the file, which has no numbers of them.

    Of as many blocks as maps, each is one.
    """
    depth, expected = model.encoder.depth, maps(file, "out/eval/feature")
    if depth > len(expected):
        images = nhwc(file["in/image"])

        def distances(model):
            every = model.encoder.forward_intermediates(images, range(depth), norm=False, intermediates_only=True)
            necks = [model.neck([x] * len(expected)) for x in every]
            return [[jnp.abs(a - b).max() for a, b in zip(neck, expected, strict=True)] for neck in necks]

        model.indices = tuple(np.argmin(run(model, distances)[0], axis=0).tolist())
    return model


def run(model, call):
    """A compiled call of a model, and its arrays after it."""
    parts = split(model)

    def pure(params, rest):
        module = merge(parts.graph, params, rest)
        return call(module), split(module).rest

    return jax.jit(pure, compiler_options=quick_compile())(parts.params, parts.rest)


@pytest.mark.parametrize("name", golden_names("dense/seg_full*"))
def test_evaluation_matches(name):
    file, model = published(name)
    images = nhwc(file["in/image"])

    def call(model):
        levels = model.pyramid(model.features(images))
        return levels, model.head(levels), model.auxiliary(levels[model.auxiliary_index]), model(images)

    (levels, logits, auxiliary, full), _ = run(model, call)
    for level, expected in zip(levels, maps(file, "out/eval/feature"), strict=True):
        close(level, expected)
    close(logits, nhwc(file["out/eval/decode_logits"]))
    close(auxiliary, nhwc(file["out/eval/aux_logits"]))
    close(full, nhwc(file["out/eval/encode_decode"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", golden_names("dense/seg_full*"))
def test_training_matches(name):
    file, model = published(name)
    images, labels = nhwc(file["in/image"]), jnp.asarray(file["in/label"].astype(np.int32))
    parts = split(model)

    def loss(params):
        module = merge(parts.graph, params, parts.rest)
        levels = module.pyramid(module.features(images, train=True), train=True)
        module = merge(parts.graph, params, parts.rest)
        total, aux = module.loss(images, labels)
        return total, (aux, split(module).rest, levels)

    step = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=quick_compile())
    (total, (aux, rest, levels)), grads = step(parts.params)
    for level, expected in zip(levels, maps(file, "out/train/feature"), strict=True):
        close(level, expected)
    close(total, file["out/train/loss"])
    for ours, theirs in LOSSES.items():
        close(aux.losses[ours], file[f"out/train/{theirs}.loss_seg"])
        close(100 * aux.accuracy[ours], file[f"out/train/{theirs}.acc_seg"][0])
    assert_gradients(parts, grads, file, "out/train/grad/", 1e-3)
    norm = np.sqrt(sum(np.square(np.asarray(grad, np.float64)).sum() for grad in grads.values()))
    close(norm, file["out/train/grad_l2_all"], 1e-3)
    after = to_published(merge(parts.graph, parts.params, rest))
    # The file's weights may have been read after the step, running statistics included: then both are equal.
    before, statistics = weights(file), weights(file, "out/train/after/")
    read_after = all(np.array_equal(before[key], value.astype(np.float32)) for key, value in statistics.items())
    assert statistics and set(statistics) == {key for key in after if "running_" in key}
    for key, value in statistics.items():
        assert not np.array_equal(after[key], before[key]), key
        if not read_after:
            close(after[key], value)


@pytest.mark.parametrize("name", golden_names("dense/seg_full*"))
def test_the_rows_of_relative_positions(name):
    file = golden(name)
    patch = file["w/backbone.patch_embed.proj.weight"].shape[-1]
    grid = tuple(side // patch for side in file["in/image"].shape[2:])
    numbers = jnp.arange(len(file["w/backbone.blocks.0.attn.relative_position_bias_table"]), dtype=jnp.float32)
    bias = relative_bias(numbers[:, None], None, grid)
    np.testing.assert_array_equal(bias[0, 0], file["out/relative_position_index"])


@pytest.mark.slow
def test_running_statistics_move_by_a_tenth_to_those_of_the_batch():
    file, model = published()
    images, before = nhwc(file["in/image"]), weights(file)
    (values, _), rest = run(
        model, lambda model: (model.neck.first(model.features(images)[0]), model(images, train=True))
    )
    values = np.asarray(values, np.float64).reshape(-1, values.shape[-1])
    after = to_published(merge(split(model).graph, split(model).params, rest))
    for key, batch in {"mean": values.mean(0), "var": values.var(0, ddof=1)}.items():
        name = f"backbone.fpn1.1.running_{key}"
        close(after[name], 0.9 * before[name] + 0.1 * batch)


def test_its_tensors_have_published_names(tmp_path):
    file, model = published()
    path = tmp_path / "upernet.safetensors"
    checkpoints.save_pretrained(model, path)
    written, expected = checkpoints.read_tensors(path), weights(file)
    spelled = {
        name.replace(".ls1.gamma", ".gamma_1").replace(".ls2.gamma", ".gamma_2"): t for name, t in written.items()
    }
    assert set(spelled) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(spelled[name], tensor)


class Heads(nnx.Module):
    published_rules = (*within("decode_head.", "head.", HEAD), *within("auxiliary_head.", "auxiliary.", HEAD))

    def __init__(self, widths, sizes, pool_scales):
        features = sizes.pop("auxiliary_features")
        self.head = UPerHead(widths, **sizes, pool_scales=pool_scales, rngs=nnx.Rngs(0))
        self.auxiliary = FCNHead(widths[2], **{**sizes, "features": features}, rngs=nnx.Rngs(0))

    def losses(self, maps, labels, train):
        logits = {"decode": self.head(maps, train=train), "aux": self.auxiliary(maps[2], train=train)}
        large = {name: resize(x, labels.shape[1:], "bilinear") for name, x in logits.items()}
        weight = {"decode": 1.0, "aux": 0.4}
        losses = {name: weight[name] * pixel_cross_entropy(x, labels) for name, x in large.items()}
        accuracy = {name: 100 * pixel_accuracy(x, labels) for name, x in large.items()}
        return sum(losses.values()), (logits, losses, accuracy)


@pytest.mark.parametrize("name", golden_names("dense/seg_heads*"))
@pytest.mark.parametrize("mode", slow_but(["train"], ["eval", "train"]))
def test_heads_on_odd_sizes(name, mode):
    file = golden(name)
    inputs, labels = maps(file, "in/feature"), jnp.asarray(file["in/label"].astype(np.int32))
    scales = [file[f"out/eval/ppm{i}"].shape[-1] for i in in_names(file, r"out/eval/ppm(\d+)")]
    heads = Heads([x.shape[-1] for x in inputs], head_sizes(weights(file)), scales)
    checkpoints.load_pretrained(heads, weights(file))

    def call(heads):
        loss = lambda inputs: heads.losses(inputs, labels, False)
        grads = jax.grad(lambda inputs: loss(inputs)[0])(inputs) if mode == "eval" else []
        return (
            heads.losses(inputs, labels, mode == "train")[1],
            grads,
            heads.head.pooled(inputs[-1]),
            heads.head.bottleneck(heads.head.pyramid(inputs[-1])),
            heads.head.join(inputs),
        )

    ((logits, losses, accuracy), grads, pooled, coarsest, joined), _ = run(heads, call)
    for key in ("decode", "aux"):
        close(logits[key], nhwc(file[f"out/{mode}/{key}_logits"]))
        close(losses[key], file[f"out/{mode}/{key}.loss_seg"])
    if mode == "train":
        return
    close(coarsest, nhwc(file["out/eval/bottleneck"]))
    close(joined, nhwc(file["out/eval/fpn_bottleneck"]))
    for key in ("decode", "aux"):
        close(accuracy[key], file[f"out/eval/{key}.acc_seg"][0])
    for array, expected in zip(pooled, maps(file, "out/eval/ppm"), strict=True):
        close(array, expected)
    for array, expected in zip(grads, maps(file, "out/eval/grad_feature"), strict=True):
        close(array, expected, 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", golden_names("dense/seg_full*"))
def test_windows_mirrors_and_scales(name):
    file, model = published(name)
    parts = split(model)
    program = jax.jit(
        lambda params, images: merge(parts.graph, params, parts.rest)(images), compiler_options=quick_compile()
    )
    segment = lambda images: program(parts.params, images)
    window, shape = file["in/image"].shape[2:], file["in/ori_shape"]
    big, second = (jnp.asarray(nhwc(file[f"in/{key}"])) for key in ("big_image", "second_scale"))
    # The file does not name the stride: two thirds of the window, as published for 512, or else what its logits say.
    alone = lambda crops: jnp.concatenate([segment(crop[None]) for crop in crops])
    expected, largest = nhwc(file["out/slide/logits"]), np.abs(file["out/slide/logits"]).max()
    for stride in (None, *range(min(window), 0, -1)):
        slide = lambda images, stride=stride: dense.sliding(alone, images, window=window, stride=stride)
        logits = slide(big)
        if np.abs(logits - expected).max() < 1e-4 * largest:
            break
    close(logits, expected)
    once = dense.probabilities(logits, shape)
    close(once, nhwc(file["out/slide/probabilities"]))
    np.testing.assert_array_equal(once.argmax(-1), file["out/slide/labels"])
    several = []
    for images in (big, second):
        several += [
            dense.probabilities(slide(images), shape),
            dense.probabilities(slide(images[:, :, ::-1]), shape)[:, :, ::-1],
        ]
    mean = sum(several) / len(several)
    close(mean, nhwc(file["out/aug/probabilities"]))
    np.testing.assert_array_equal(mean.argmax(-1), file["out/aug/labels"])
    first = dense.whole(segment, jnp.asarray(nhwc(file["in/image"][:1])))
    close(dense.probabilities(first, shape), nhwc(file["out/whole/probabilities"]))


def test_windows_agree_where_they_overlap():
    images = jnp.asarray(np.random.default_rng(0).normal(size=(1, 10, 13, 3)), jnp.float32)
    np.testing.assert_allclose(dense.sliding(lambda window: 2 * window, images, window=6), 2 * images, atol=1e-6)
    # Each window adds one to what it sees; the mean over the windows of a pixel is one everywhere.
    ones = dense.sliding(jnp.ones_like, images, window=6)
    np.testing.assert_allclose(ones, np.ones(images.shape), atol=1e-6)


def test_windows_need_large_enough_images():
    with pytest.raises(UserError, match="smaller than a window of 96x96"):
        dense.sliding(lambda x: x, jnp.zeros((1, 64, 128, 3)), window=96)


@pytest.mark.slow
def test_a_plan_reduces_the_encoder_and_leaves_the_head():
    file, model = published()
    images = nhwc(file["in/image"])
    fast = reduction.apply(model, reduction.Plan("tome", keep_rate=0.6, reduction_loc=(1,)))
    assert len(reduction.installed(fast)) == 1 and not reduction.installed(model)
    (dense_maps, full), _ = run(model, lambda model: (model.features(images), model(images)))
    (fast_maps, reduced), _ = run(fast, lambda model: (model.features(images), model(images)))
    assert reduced.shape == full.shape and [x.shape for x in fast_maps] == [x.shape for x in dense_maps]
    close(fast_maps[0], dense_maps[0])
    assert np.abs(np.asarray(fast_maps[-1] - dense_maps[-1])).max() > 1e-3
    arrays, before = variables(fast), variables(model)
    assert all(np.array_equal(arrays[name][...], before[name][...]) for name in before)
    back = reduction.apply(fast, reduction.Plan("tome", r=0))
    (again, _), _ = run(back, lambda model: (model(images), None))
    close(again, full, 1e-6)


def test_blocks_that_are_read():
    assert default_indices(12) == (3, 5, 7, 11) and default_indices(24) == (7, 11, 15, 23)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"indices": (1, 3)}, r"pyramid of 4 maps .* indices \(1, 3\) are 2 of 4 × 4: give 4 indices"),
        ({"auxiliary_index": 4}, "auxiliary_index=4 is none of the 4 maps: use 0 to 3"),
        ({"img_size": 8}, "of 1 × 1: give 4 indices, or larger images"),
    ],
)
def test_maps_that_make_no_pyramid_are_refused(options, message):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 4, "num_heads": 2, "features": 8}
    with pytest.raises(UserError, match=message):
        dense.create("upernet", encoder="vit", num_classes=3, **{**sizes, **options}, rngs=nnx.Rngs(0))
