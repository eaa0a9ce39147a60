"""LocalMIM on a Swin against its published rules, computed step by step in NumPy, and PR-MIM on it."""

import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import quick_compile, quickly

from jaxprune import checkpoints, mim
from jaxprune.errors import UserError
from jaxprune.mim.localmim_swin import CellMasker
from jaxprune.mim.parts.hog import hog_levels
from jaxprune.nn.params import merge, split, variables
from jaxprune.ops.posembed import sincos_2d
from jaxprune.train.optimizer import decay_mask
from jaxprune.weights.rules import to_published

SIZES = {
    "img_size": 48,
    "patch_size": 4,
    "embed_dim": 8,
    "depths": (2, 1, 1),
    "num_heads": (1, 2, 2),
    "window_size": 4,
    "decoder_embed_dim": 16,
    "decoder_num_heads": 2,
    "mask_ratio": 0.6,
}
IMAGES = np.random.default_rng(0).normal(size=(2, 48, 48, 3)).astype(np.float32)
NOISE = np.random.default_rng(1).uniform(size=(1, 9)).astype(np.float32)


def create(**changes):
    """A framework of which no two parameters are alike."""
    model = mim.create("localmim_swin", **SIZES, **changes, rngs=nnx.Rngs(0))
    random = np.random.default_rng(2)
    for variable in variables(model).values():
        if isinstance(variable, nnx.Param):
            variable[...] = variable[...] + jnp.asarray(0.1 * random.normal(size=variable.shape), jnp.float32)
    return model


def run(model, **drawn):
    return quickly(model, lambda model, images: model(images, **drawn))(jnp.asarray(IMAGES))


class Published:
    """The published forward pass on arrays under the published names."""

    def __init__(self, tensors):
        self.tensors = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}

    def linear(self, name, x):
        weight = self.tensors[f"{name}.weight"]
        return x @ weight.reshape(len(weight), -1).T + self.tensors.get(f"{name}.bias", 0)

    def norm(self, name, x):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def block(self, name, x, num_heads, bias=0.0):
        qkv = self.linear(f"{name}.attn.qkv", self.norm(f"{name}.norm1", x))
        q, k, v = qkv.reshape(len(x), 3, num_heads, -1).transpose(1, 2, 0, 3)
        logits = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1]) + bias
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ v
        x = x + self.linear(f"{name}.attn.proj", mixed.swapaxes(0, 1).reshape(x.shape))
        erf = np.vectorize(math.erf)
        hidden = self.linear(f"{name}.mlp.fc1", self.norm(f"{name}.norm2", x))
        return x + self.linear(f"{name}.mlp.fc2", hidden * (1 + erf(hidden / math.sqrt(2))) / 2)

    def bias(self, name, places, window, shift):
        """Biases of the pairs in a window, which does not wrap around the map; others are hidden."""
        table = self.tensors[f"{name}.attn.relative_position_bias_table"]
        biases = np.full((table.shape[1], len(places), len(places)), -100.0)
        home = [tuple((c + (window - shift) % window) // window for c in place) for place in places]
        for (i, a), (j, b) in itertools.product(enumerate(places), repeat=2):
            if home[i] == home[j]:
                down, right = a[0] - b[0] + window - 1, a[1] - b[1] + window - 1
                biases[:, i, j] = table[down * (2 * window - 1) + right]
        return biases

    def latents(self, image, visible):
        """By stage, {(row, column) of a visible token: its norm'd output}, merged but for the last stage."""
        side, out = 4, []
        tokens = {}
        for row, column in itertools.product(range(12), repeat=2):
            if visible[row // side, column // side]:
                patch = image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4].transpose(2, 0, 1)
                tokens[row, column] = self.linear("encoder.patch_embed.proj", patch.reshape(-1))
        tokens = {place: self.norm("encoder.patch_embed.norm", x) for place, x in tokens.items()}
        for stage, (depth, heads) in enumerate(zip(SIZES["depths"], SIZES["num_heads"], strict=True)):
            grid = 12 >> stage
            window = min(SIZES["window_size"], grid)
            for index in range(depth):
                shift = window // 2 if index % 2 and grid > window else 0
                name = f"encoder.layers.{stage}.blocks.{index}"
                bias = self.bias(name, list(tokens), window, shift)
                x = self.block(name, np.stack(list(tokens.values())), heads, bias)
                tokens = dict(zip(tokens, x, strict=True))
            if stage < len(SIZES["depths"]) - 1:
                merged = {}
                for row, column in tokens:
                    if row % 2 == column % 2 == 0:
                        four = [tokens[row + down, column + right] for right in (0, 1) for down in (0, 1)]
                        name = f"encoder.layers.{stage}.downsample"
                        x = self.norm(f"{name}.norm", np.concatenate(four))
                        merged[row // 2, column // 2] = self.linear(f"{name}.reduction", x)
                tokens = merged
            out.append({place: self.norm(f"encoder.norm.{stage}", x) for place, x in tokens.items()})
        return out

    def decoded(self, stage, latent, grid):
        name = f"decoder.{stage}"
        dim = SIZES["decoder_embed_dim"] // (1 if stage else 2)
        x = np.broadcast_to(self.tensors[f"{name}.mask_token"][0], (grid * grid, dim)).copy()
        for (row, column), token in latent.items():
            x[row * grid + column] = self.linear(f"{name}.embed", token)
        x = self.block(f"{name}.blocks.0", x + sincos_2d(dim, (grid, grid), 0), SIZES["decoder_num_heads"])
        return self.linear(f"{name}.pred", self.norm(f"{name}.norm", x))


def cut(image, side):
    rows = len(image) // side
    return image.reshape(rows, side, rows, side, 3).swapaxes(1, 2).reshape(rows * rows, -1)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["hog", pytest.param("pixels", marks=pytest.mark.slow)])
def test_it_follows_the_published_rules(target):
    model = create(target=target)
    published = Published(to_published(model))
    loss, aux = run(model, noise=jnp.asarray(NOISE))
    # Of 9 cells int(0.6 * 9) + 1 = 6 are masked, in every image the same.
    masked = np.argsort(np.argsort(NOISE[0])) >= 3
    np.testing.assert_array_equal(aux.masked, [masked, masked])
    total = 0.0
    outputs = [published.latents(np.asarray(image, np.float64), ~masked.reshape(3, 3)) for image in IMAGES]
    for stage, (grid, cell) in enumerate(((6, 8), (3, 16), (3, 16))):
        preds = np.stack([published.decoded(stage, latents[stage], grid) for latents in outputs])
        np.testing.assert_allclose(aux.preds[stage], preds, atol=5e-5)
        if target == "hog":
            biases = published.tensors[f"hog_enc.{stage}.conv.bias"].astype(np.float32)
            targets = hog_levels(jnp.asarray(IMAGES), [(cell, cell)], 18, [jnp.asarray(biases)])[0]
        else:
            targets = np.stack([cut(image, cell) for image in IMAGES]).astype(np.float64)
            variance = targets.var(-1, ddof=1, keepdims=True)
            targets = (targets - targets.mean(-1, keepdims=True)) / np.sqrt(variance + 1e-6)
        np.testing.assert_allclose(aux.targets[stage], targets, atol=1e-5)
        weights = np.kron(masked.reshape(3, 3), np.ones((grid // 3,) * 2)).reshape(-1)
        error = np.square(preds - np.asarray(targets)).mean(-1)
        by_level = (error * weights).sum() / (2 * weights.sum())
        np.testing.assert_allclose(aux.losses[stage], by_level, rtol=2e-5)
        total += by_level
    np.testing.assert_allclose(loss, total, rtol=2e-5)


def test_the_masked_cells_are_counted_as_published():
    # The published randperm(N) <= int(ratio * N), by the numbers of cells of images of 224, 128 and 96 pixels.
    for side, masked in ((7, 37), (4, 13), (3, 7)):
        assert CellMasker((side, side), 0.75).num_masked == masked == int(0.75 * side * side) + 1


@pytest.mark.slow
def test_the_published_sizes():
    make = lambda **changes: nnx.eval_shape(
        lambda: mim.create("localmim_swin", encoder="swin_base_patch4_window7_224", **changes, rngs=nnx.Rngs(0))
    )
    shapes = {name: variable.shape for name, variable in variables(make()).items()}
    for stage, (width, dim, cells) in enumerate(((256, 64, 784), (512, 128, 196), (1024, 128, 49), (1024, 128, 49))):
        assert shapes[f"decoder.levels.{stage}.embed.kernel"] == (width, dim)
        assert shapes[f"decoder.levels.{stage}.pos_embed"] == (1, cells, dim)
        assert shapes[f"decoder.levels.{stage}.pred.kernel"] == (dim, 54)
    pixels = {name: variable.shape for name, variable in variables(make(target="pixels")).items()}
    assert [pixels[f"decoder.levels.{stage}.pred.kernel"][1] for stage in range(4)] == [192, 768, 3072, 3072]


def test_tokens_and_biases_of_positions_do_not_decay():
    model = nnx.eval_shape(lambda: mim.create("localmim_swin", **SIZES, rngs=nnx.Rngs(0)))
    params = split(model).params
    decays = decay_mask(params, model.no_decay)
    names = {name for name, decay in decays.items() if not decay and params[name].ndim > 1}
    assert {name.rsplit(".", 1)[1] for name in names} == {"mask_token", "relative_position_bias_table"}
    assert sum(name.endswith("mask_token") for name in names) == len(SIZES["depths"])


@pytest.mark.parametrize("target", ["hog", pytest.param("pixels", marks=pytest.mark.slow)])
def test_its_tensors_have_published_names(target, tmp_path):
    model = create(target=target)
    checkpoints.save_pretrained(model, tmp_path / "localmim.safetensors")
    tensors = checkpoints.read_tensors(tmp_path / "localmim.safetensors")
    assert {"encoder.norm.0.weight", "encoder.norm.2.bias", "decoder.0.mask_token"} <= tensors.keys()
    assert "encoder.layers.0.downsample.reduction.weight" in tensors
    assert ("hog_enc.2.conv.bias" in tensors) == (target == "hog")
    found = mim.recognise({name.removeprefix("encoder."): tensor.shape for name, tensor in tensors.items()})
    assert found.pop("mlp_ratio") == pytest.approx(4)
    kind = {"num_bins": 18, "hog_bias": True} if target == "hog" else {"target": "pixels"}
    known = {name: SIZES[name] for name in ("depths", "num_heads", "window_size", "embed_dim", "decoder_embed_dim")}
    assert found == {
        "name": "localmim_swin",
        **known,
        **kind,
        "img_size": (48, 48),
        "patch_size": (4, 4),
        "in_chans": 3,
        "decoder_depth": 1,
        "decoder_num_heads": 1,
    }
    other = mim.create("localmim_swin", **SIZES, target=target, rngs=nnx.Rngs(5))
    # A published file has the Sobel filters too.
    filters = {"hog_enc.0.conv.weight": np.ones((2, 1, 3, 3), np.float32)} if target == "hog" else {}
    checkpoints.load_pretrained(other, tensors | filters)
    chex.assert_trees_all_equal(to_published(other), tensors)


@pytest.mark.slow
@pytest.mark.parametrize("reconstruction", ["partial", "progressive"])
def test_thrown_cells_are_rebuilt_or_left_out(reconstruction):
    model = create(target="pixels", reconstruction=reconstruction, throw_ratio=0.3)
    parts = split(model)
    drawn = {"noise": jnp.asarray(NOISE), "first": jnp.zeros((1,), jnp.int32)}

    def loss(params):
        return merge(parts.graph, params, parts.rest)(jnp.asarray(IMAGES), **drawn)

    program = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=quick_compile())
    (total, aux), gradients = program(parts.params)
    for name, gradient in gradients.items():
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, name
    np.testing.assert_array_equal(aux.thrown.sum(1), [2, 2])
    learned = np.asarray(aux.retained if reconstruction == "partial" else aux.masked, np.float64).reshape(2, 3, 3)
    for stage, grid in enumerate((6, 3, 3)):
        weights = np.kron(learned, np.ones((1, grid // 3, grid // 3))).reshape(2, -1)
        thrown = np.kron(np.asarray(aux.thrown).reshape(2, 3, 3), np.ones((1, grid // 3, grid // 3))).reshape(2, -1) > 0
        error = np.square(aux.preds[stage] - aux.targets[stage]).mean(-1)
        np.testing.assert_allclose(aux.losses[stage], (error * weights).sum() / weights.sum(), rtol=1e-5)
        assert np.asarray(aux.preds[stage])[thrown].any() == (reconstruction == "progressive")
    np.testing.assert_allclose(total, sum(aux.losses), rtol=1e-6)
    colour = model.mean_colour_loss(jnp.asarray(IMAGES), aux.masks)
    assert 2.5 < colour < 3.5  # nearly 1 for each map of normalised pixels


@pytest.mark.slow
def test_nothing_thrown_is_the_same_to_the_bit():
    full = create(target="pixels")
    progressive = create(target="pixels", reconstruction="progressive", throw_ratio=0.0)
    ours, theirs = variables(full), variables(progressive)
    assert {name.rsplit(".", 2)[1] for name in theirs if name not in ours} == {"aggregate"}
    for name, variable in ours.items():
        theirs[name][...] = variable[...]
    found = [run(model, noise=jnp.asarray(NOISE)) for model in (full, progressive)]
    chex.assert_trees_all_equal(*found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "pixel"}, "Did you mean 'pixels'"),
        ({"decoder_embed_dim": 12}, "decoder_embed_dim=12 has no half"),
        ({"img_size": 40}, "whole number of cells of 16x16"),
        ({"mask_ratio": 0.9}, "leaves 0 of 9 cells visible"),
        ({"throw_ratio": 0.5}, "reconstruction='progressive'"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        nnx.eval_shape(lambda: mim.create("localmim_swin", **{**SIZES, **changes}, rngs=nnx.Rngs(0)))
