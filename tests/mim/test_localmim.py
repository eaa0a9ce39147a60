"""LocalMIM with histograms of oriented gradients against the published numbers, and PR-MIM on it."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import autoencoder_sizes, golden, in_names, nhwc, quick_compile, quickly, ratio_of, weights

from jaxprune import checkpoints, mim
from jaxprune.errors import UserError
from jaxprune.mim.localmim import at_level, default_indices
from jaxprune.mim.parts.hog import hog_levels
from jaxprune.nn.params import merge, split, variables
from jaxprune.ranking import pseudo_labels
from jaxprune.weights.rules import to_published

SMALL = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 16,
    "depth": 4,
    "num_heads": 2,
    "decoder_embed_dim": 8,
    "decoder_num_heads": 2,
}


def published(**arguments):
    file = golden("mim/localmim_forward")
    sizes = {
        **autoencoder_sizes(file),
        "mlp_ratio": float(file["mlp_ratio"]),
        "num_bins": file["pred0"].shape[2] // file["imgs"].shape[1],
        "mask_ratio": 1 - ratio_of(int((file["mask"][0] == 0).sum()), file["mask"].shape[1]),
    }
    return file, mim.create("localmim", **sizes, **arguments, rngs=nnx.Rngs(0))


def run(model, images, **drawn):
    parts = split(model)
    program = lambda params: merge(parts.graph, params, parts.rest)(images, **drawn)
    return jax.jit(program, compiler_options=quick_compile())(parts.params)


def value_and_grad(model, images, **drawn):
    parts = split(model)
    loss = jax.value_and_grad(lambda params: merge(parts.graph, params, parts.rest)(images, **drawn), has_aux=True)
    return jax.jit(loss, compiler_options=quick_compile())(parts.params)


def test_localmim_matches():
    file, model = published()
    assert model.indices == tuple(file["ids"])
    checkpoints.load_pretrained(model, weights(file))
    loss, aux = run(model, jnp.asarray(nhwc(file["imgs"])), noise=jnp.asarray(file["noise"]))
    np.testing.assert_array_equal(aux.masked, file["mask"].astype(bool))
    np.testing.assert_array_equal(aux.ids_restore, file["ids_restore"])
    chex.assert_trees_all_close(loss, file["loss"], rtol=1e-5)
    levels = in_names(file, r"latent(\d+)")
    assert len(levels) == len(aux.latents)
    for level in map(int, levels):
        chex.assert_trees_all_close(aux.latents[level], file[f"latent{level}"], atol=5e-5, rtol=0)
        chex.assert_trees_all_close(aux.preds[level], file[f"pred{level}"], atol=5e-5, rtol=0)
        chex.assert_trees_all_close(aux.targets[level], file[f"target{level}"], atol=1e-6, rtol=0)
        chex.assert_trees_all_close(aux.masks_by_level[level], file[f"mask{level}"], atol=1e-6, rtol=0)
        chex.assert_trees_all_close(aux.losses[level], file[f"loss{level}"], rtol=1e-5)


def test_its_tensors_have_published_names(tmp_path):
    file, model = published()
    expected, path = weights(file), tmp_path / "localmim.safetensors"
    checkpoints.load_pretrained(model, expected)
    checkpoints.save_pretrained(model, path)
    written = checkpoints.read_tensors(path)
    assert set(written) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(written[name], tensor)
    found, sizes = mim.recognise({name: tensor.shape for name, tensor in expected.items()}), autoencoder_sizes(file)
    assert found == {
        "name": "localmim",
        "decoder_embed_dim": sizes["decoder_embed_dim"],
        "decoder_depth": sizes["decoder_depth"],
        "decoder_num_heads": 1,
        "num_bins": file["pred0"].shape[2] // file["imgs"].shape[1],
    }
    changed = {**expected, "decoder.0.pred.3.weight": expected["decoder.0.pred.3.weight"][:, :1]}
    with pytest.raises(UserError, match=r"decoder\.0\.pred\.3\.weight"):
        checkpoints.load_pretrained(model, changed)
    del expected[f"norm.{model.indices.index(sizes['depth'] - 1)}.bias"]
    with pytest.raises(UserError, match=r"encoder\.norm\.bias"):
        checkpoints.load_pretrained(model, expected)


FOUR = {**SMALL, "indices": (0, 1, 2, 3)}  # a shallow encoder with all levels
DRAWN = {"noise": jax.random.uniform(jax.random.key(1), (2, 16)), "first": jnp.zeros((2,), jnp.int32)}


@pytest.mark.slow
def test_nothing_thrown_is_the_same_to_the_bit():
    arguments = {**FOUR, "rngs": nnx.Rngs(0)}
    full = mim.create("localmim", **arguments)
    progressive = mim.create("localmim", **arguments, reconstruction="progressive", throw_ratio=0.0)
    ours, theirs = variables(full), variables(progressive)
    assert {name for name in theirs if name not in ours} == {
        f"decoder.levels.{level}.aggregate.{part}" for level in range(4) for part in ("kernel", "bias")
    }
    for name, variable in ours.items():
        theirs[name][...] = variable[...]
    images = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    results = [value_and_grad(model, images, noise=DRAWN["noise"]) for model in (full, progressive)]
    chex.assert_trees_all_equal(*(found for found, _ in results))
    gradients = results[0][1]
    chex.assert_trees_all_equal(gradients, {name: results[1][1][name] for name in gradients})


@pytest.mark.slow
@pytest.mark.parametrize("reconstruction", ["partial", "progressive"])
def test_thrown_patches_are_rebuilt_or_left_out(reconstruction):
    images = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    model = mim.create("localmim", **FOUR, reconstruction=reconstruction, throw_ratio=0.5, rngs=nnx.Rngs(0))
    (loss, aux), grads = value_and_grad(model, images, **DRAWN)
    for name, gradient in grads.items():
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, name
    np.testing.assert_array_equal(aux.thrown.sum(1), [8, 8])
    learned = np.asarray(aux.retained if reconstruction == "partial" else aux.masked, np.float32).reshape(2, 4, 4)
    thrown, total = np.asarray(aux.thrown).reshape(2, 4, 4), 0.0
    for level, cells in enumerate((16, 8, 4, 2)):
        if cells >= 4:
            each = np.kron(learned, np.ones((cells // 4,) * 2))
            left_out = np.kron(thrown, np.ones((cells // 4,) * 2)) > 0
        else:
            each = learned.reshape(2, 2, 2, 2, 2).mean((2, 4))
            left_out = thrown.reshape(2, 2, 2, 2, 2).all((2, 4))
        each = each.reshape(2, -1)
        error = np.square(aux.preds[level] - aux.targets[level]).mean(-1)
        np.testing.assert_allclose(aux.masks_by_level[level], each)
        np.testing.assert_allclose(aux.losses[level], (error * each).sum() / each.sum(), rtol=1e-5)
        total += float(aux.losses[level])
        if left_out.any():
            assert np.asarray(aux.preds[level])[left_out.reshape(2, -1)].any() == (reconstruction == "progressive")
    np.testing.assert_allclose(loss, total, rtol=1e-6)


@pytest.mark.slow
def test_large_cells_average_the_patches_that_were_decoded():
    model = mim.create("localmim", **SMALL, reconstruction="partial", throw_ratio=0.5, rngs=nnx.Rngs(0))
    masks = model.draw(jnp.zeros((2, 32, 32, 3)), **DRAWN)
    level = model.decoder.levels[3]
    decoded = jnp.broadcast_to(jnp.arange(8.0)[None, None], (2, 1 + masks.ids_present.shape[1], 8))
    pred = jax.jit(lambda decoded: level.predict(decoded, masks))(decoded)
    # All decoded patches alike, it does not matter how many of them a cell has.
    some = np.asarray(masks.present).reshape(2, 2, 2, 2, 2).any((2, 4)).reshape(2, -1)
    expected = jnp.where(some[:, :, None], level.head(decoded[:1, :1]), 0)
    chex.assert_trees_all_close(pred, expected, atol=1e-6)


@pytest.mark.slow
def test_the_published_share_of_operations():
    def total(**arguments):
        make = lambda: mim.create("localmim", encoder="vit_base_patch16_224", **arguments, rngs=nnx.Rngs(0))
        return nnx.eval_shape(make).flops().total

    ratio = total(reconstruction="progressive", throw_ratio=0.65) / total()
    assert ratio == pytest.approx(0.91, abs=0.015)


@pytest.mark.slow
def test_aggregation_has_names_too(tmp_path):
    arguments = {"reconstruction": "progressive", "throw_ratio": 0.5, "kernel_size": 5}
    model = mim.create("localmim", **SMALL, **arguments, rngs=nnx.Rngs(0))
    checkpoints.save_pretrained(model, tmp_path / "localmim.safetensors")
    tensors = checkpoints.read_tensors(tmp_path / "localmim.safetensors")
    assert tensors["decoder.2.agg.weight"].shape == (8, 1, 5, 5)
    found = mim.recognise({name: tensor.shape for name, tensor in tensors.items()})
    assert found["kernel_size"] == 5 and found["reconstruction"] == "progressive"
    other = mim.create("localmim", **SMALL, **arguments, rngs=nnx.Rngs(1))
    checkpoints.load_pretrained(other, tensors)
    chex.assert_trees_all_equal(split(other).params, split(model).params)


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (12, (1, 3, 9, 11)),
        (8, (1, 3, 5, 7)),
        (6, (1, 3, 3, 5)),
        (5, (1, 3, 2, 4)),
        (4, (1, 3, 1, 3)),
        (2, (1, 3, -1, 1)),
    ],
)
def test_default_indices(depth, expected):
    assert default_indices(depth) == expected


# By level, (block, place of its norm), from the published loop over blocks.
PAIRS = {
    (2, None): [(1, 0)],
    (4, None): [(1, 0), (3, 1)],
    (5, None): [(1, 0), (2, 2), (3, 1), (4, 3)],
    (6, None): [(1, 0), (3, 1), (5, 3)],
    (5, (4, 0, 0, 2)): [(0, 1), (2, 3), (4, 0)],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "indices"), [case if case == (5, None) else pytest.param(*case, marks=pytest.mark.slow) for case in PAIRS]
)
def test_blocks_norms_and_decoders_pair_as_published(depth, indices):
    model = mim.create("localmim", **{**SMALL, "depth": depth}, indices=indices, rngs=nnx.Rngs(0))
    pairs, rng, tensors = PAIRS[depth, indices], np.random.default_rng(0), to_published(model)
    assert {name.split(".")[1] for name in tensors if name.startswith(("norm.", "decoder."))} == set("0123")
    for name in tensors:
        if name.startswith("norm."):
            tensors[name] = rng.normal(size=tensors[name].shape).astype(np.float32)
    checkpoints.load_pretrained(model, tensors)
    chex.assert_trees_all_equal(to_published(model), tensors)
    images = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    masks = model.draw(images, noise=DRAWN["noise"])

    def call(model, images):
        encoder = model.encoder
        left = encoder.encode(encoder.embed(images, masks.ids_keep), masks.ids_keep).block_outputs
        return *model(images, noise=DRAWN["noise"]), [tokens.x for tokens in left]

    loss, aux, left = quickly(model, call)(images)
    assert len(aux.latents) == len(aux.preds) == len(aux.targets) == len(aux.losses) == len(pairs)
    for (block, place), latent in zip(pairs, aux.latents, strict=True):
        x = np.asarray(left[block], np.float64)
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        expected = x * tensors[f"norm.{place}.weight"] + tensors[f"norm.{place}.bias"]
        np.testing.assert_allclose(latent, expected, atol=2e-5)
    np.testing.assert_allclose(loss, sum(aux.losses), rtol=1e-6)
    for level, (pred, latent) in enumerate(zip(aux.preds, aux.latents, strict=True)):
        decoder = model.decoder.levels[level]
        found = quickly(decoder, lambda decoder, latent: decoder(latent, masks))(latent)
        chex.assert_trees_all_close(pred, found, atol=1e-5)
    side = max(2 ** (3 - len(pairs)), 1)  # cells per patch of the level nearest to patches
    cells = np.asarray(aux.preds[min(len(pairs), 3) - 1]).reshape(2, 4, side, 4, side, 27)
    np.testing.assert_allclose(aux.pred, cells.mean((2, 4)).reshape(2, 16, 27), atol=1e-6)
    # What is not used is not trained.
    trained = {int(name.split(".")[2]) for name in split(model).params if name.startswith("decoder.levels.")}
    assert trained == set(range(len(pairs)))
    assert sum(name.startswith(("norms.", "encoder.norm.")) for name in split(model).params) == 2 * len(pairs)


@pytest.mark.slow
def test_fine_tuning_takes_the_norm_of_the_last_block():
    model = mim.create("localmim", **SMALL, rngs=nnx.Rngs(0))
    model.encoder.norm.bias[...] = jnp.ones(16)
    tensors = mim.encoder_tensors(to_published(model) | {"hog_enc.0.conv.weight": np.zeros((2, 1, 3, 3), np.float32)})
    np.testing.assert_array_equal(tensors["norm.bias"], np.ones(16))
    assert not any(name.startswith(("norm.0", "hog_enc", "decoder")) for name in tensors)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
def test_whole_state_dicts_load(bias, tmp_path):
    """They have the Sobel filters of the targets, and for ViT-L and H biases of these."""
    file, model = published(hog_bias=bias)
    tensors = weights(file) | {f"hog_enc.{k}.conv.weight": np.ones((2, 1, 3, 3), np.float32) for k in range(4)}
    biases = {f"hog_enc.{k}.conv.bias": np.asarray([k + 1, -k], np.float32) for k in range(4)}
    if not bias:
        with pytest.raises(UserError, match=r"left over .*hog_enc\.0\.conv\.bias"):
            checkpoints.load_pretrained(model, tensors | biases)
    checkpoints.load_pretrained(model, tensors | (biases if bias else {}))
    images = jnp.asarray(nhwc(file["imgs"]))
    found = model.targets(images)
    if not bias:
        chex.assert_trees_all_close(found[0], file["target0"], atol=1e-6, rtol=0)
        return
    finest = model.patch_size[0] // 4
    for k, level in enumerate(found):
        alone = hog_levels(images, [(finest * 2**k,) * 2], model.target.num_bins, [jnp.asarray([k + 1.0, -k])])[0]
        chex.assert_trees_all_close(level, alone, atol=1e-6)
    assert mim.recognise({name: tensor.shape for name, tensor in (tensors | biases).items()})["hog_bias"]
    checkpoints.save_model(model, tmp_path / "model.safetensors")
    again = checkpoints.load_model(tmp_path / "model.safetensors")
    chex.assert_trees_all_equal(again.targets(images), found)


PIXELS = [(depth, norm) for depth in (4, 12) for norm in (True, False)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "norm"), [case if case == (4, True) else pytest.param(*case, marks=pytest.mark.slow) for case in PIXELS]
)
def test_pixels_of_every_scale(depth, norm):
    """As LocalMIM's Swin predicts them, by the cells of a ViT."""
    sizes = {**SMALL, "depth": depth, "target": "pixels", "norm_pix_loss": norm}
    model = mim.create("localmim", **sizes, rngs=nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    loss, aux = run(model, images, noise=DRAWN["noise"])
    cells, levels = np.asarray(images), len(model.supervised)
    assert levels == (2 if depth == 4 else 4)
    for side, target, pred, weight, found in zip(
        (2, 4, 8, 16), aux.targets, aux.preds, aux.masks_by_level, aux.losses, strict=False
    ):
        rows = 32 // side
        expected = cells.reshape(2, rows, side, rows, side, 3).swapaxes(2, 3).reshape(2, rows**2, -1)
        if norm:
            variance = expected.var(-1, ddof=1, keepdims=True)
            expected = (expected - expected.mean(-1, keepdims=True)) / np.sqrt(variance + 1e-6)
        np.testing.assert_allclose(target, expected, atol=1e-5)
        assert pred.shape == target.shape
        error = np.square(pred - target).mean(-1)
        np.testing.assert_allclose(found, (error * weight).sum() / weight.sum(), rtol=1e-5)
    np.testing.assert_allclose(loss, sum(aux.losses), rtol=1e-6)
    # A perfect prediction of the finest cells is one of the patches.
    if levels < 3:
        whole = model._of_patches(aux.targets, images)
        np.testing.assert_allclose(whole, model.target(images), atol=1e-3)
    else:
        np.testing.assert_array_equal(aux.pred, aux.preds[2])
    colour = model.mean_colour_loss(images, aux.masks)
    assert not norm or 0.5 * levels < colour < 1.5 * levels
    shapes = {name: np.shape(tensor) for name, tensor in to_published(model).items()}
    assert mim.recognise(shapes)["target"] == "pixels" and "num_bins" not in mim.recognise(shapes)


def test_masks_follow_the_scale():
    masked = jnp.asarray([[True, True, False, True, False, False, True, True]])
    np.testing.assert_array_equal(at_level(masked, (2, 4), -1), [[0.5, 0.75]])
    double = at_level(masked, (2, 4), 1).reshape(4, 8)
    np.testing.assert_array_equal(double, np.kron(np.asarray(masked).reshape(2, 4), np.ones((2, 2))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"indices": (0, 1, 3)}, "must be 4 blocks"),
        ({"indices": (0, 1, 2, 4)}, "from 0 to 3"),
        ({"indices": (0, 1, -1, 3)}, "from 0 to 3"),
        ({"indices": (0, 1, 2, 2)}, "3 among them"),
        ({"patch_size": 2}, "multiple of 4"),
        ({"img_size": 24}, "even number"),
        ({"decoder_embed_dim": 10}, "4"),
        ({"num_bins": 0}, "num_bins=0"),
        ({"throw_ratio": 0.5}, "reconstruction='progressive'"),
        ({"reconstruction": "progresive"}, "Did you mean 'progressive'"),
        ({"norm_pix": True}, "LocalMIM has no argument 'norm_pix'"),
        ({"target": "pixel"}, "Did you mean 'pixels'"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        nnx.eval_shape(lambda: mim.create("localmim", **{**SMALL, **arguments}, rngs=nnx.Rngs(0)))


@pytest.mark.slow
def test_its_parts_say_what_they_are():
    model = nnx.eval_shape(lambda: mim.create("localmim", **SMALL, indices=(0, 0, 2, 3), rngs=nnx.Rngs(0)))
    assert "encoder blocks 0, 2, 3 (from 0) predict histograms of oriented gradients at 3 scales" in model.summary()
    with pytest.raises(UserError, match="LocalMIM reconstructs with a LevelDecoders, which cannot leave out a patch"):
        pseudo_labels(model, jnp.zeros((2, 32, 32, 3)), key=jax.random.key(0))


def test_convolutions_begin_as_pytorch_begins_them():
    model = mim.create("localmim", **{**SMALL, "decoder_embed_dim": 32}, rngs=nnx.Rngs(0))
    for decoder in model.decoder.levels:
        inputs = decoder.pred.kernel.shape[0]
        layers = [(decoder.pred, inputs), *((up, up.kernel.shape[1]) for up in decoder.up)]
        for layer, count in layers:
            for array in (layer.kernel[...], layer.bias[...]):
                assert 0.5 < np.abs(array).max() * count**0.5 <= 1 and array.min() < 0 < array.max()
