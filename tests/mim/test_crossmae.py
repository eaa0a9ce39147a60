"""CrossMAE against the published numbers, and PR-MIM on it."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import assert_gradients, golden, golden_names, nhwc, quick_compile, quickly, slow_but, weights

from jaxprune import checkpoints, mim
from jaxprune.errors import UserError
from jaxprune.mim.parts.cross_decoder import CrossBlock
from jaxprune.mim.parts.rank_masker import RankMasker
from jaxprune.mim.parts.rebuild_thrown import fill_grid
from jaxprune.nn.params import merge, split, variables
from jaxprune.nn.tensor_rules import linear
from jaxprune.weights.rules import to_published

SMALL = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 16,
    "depth": 3,
    "num_heads": 2,
    "decoder_embed_dim": 16,
    "decoder_depth": 2,
    "decoder_num_heads": 2,
}
SIZES = (*SMALL, "mask_ratio", "kept_mask_ratio", "weight_fm", "use_input", "norm_pix_loss", "norm_eps")
FILES = golden_names("newer/crossmae_wfm*")
BLOCKS = golden_names("newer/crossmae_block_*")


def published(name, **arguments):
    """The arrays of a file, and its model with its weights."""
    file = golden(name)
    config = json.loads(str(file["config"]))
    sizes = {size: config[size] for size in (*SIZES, "self_attn") if size in config}
    if config["use_fm"] != [-1]:  # -1 alone stands for every block, and among others for the last
        sizes["indices"] = tuple(index % config["depth"] for index in config["use_fm"])
    model = mim.create("crossmae", **{**sizes, **arguments}, rngs=nnx.Rngs(0))
    new = ("decoder.aggregate.*",) if model.reconstruction == "progressive" else ()
    return file, checkpoints.load_pretrained(model, weights(file, "w."), new=new)


def value_and_grad(model, images, **drawn):
    parts = split(model)

    def loss(params):
        model = merge(parts.graph, params, parts.rest)
        loss, aux = model(images, **drawn)
        return loss, (aux, model.decoder.decode(aux.latent, aux.masks))

    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=quick_compile())(parts.params)


def inputs(file):
    return jnp.asarray(nhwc(file["images"])), jnp.asarray(file["noise_f64"], jnp.float32)


@pytest.mark.parametrize("name", slow_but(FILES[:1], FILES))
def test_crossmae_matches(name):
    file, model = published(name)
    images, noise = inputs(file)
    (loss, (aux, decoded)), grads = value_and_grad(model, images, noise=noise)
    np.testing.assert_array_equal(aux.retained, file["mask"].astype(bool))
    np.testing.assert_array_equal(aux.ids_restore, file["ids_restore"])
    chex.assert_trees_all_close(aux.latent, file["latents"], atol=2e-5, rtol=2e-5)
    chex.assert_trees_all_close(decoded, file["decoded"], atol=2e-5, rtol=2e-5)
    pred = np.asarray(aux.pred)[np.asarray(aux.retained)].reshape(file["pred"].shape)
    chex.assert_trees_all_close(pred, file["pred"], atol=2e-5, rtol=2e-5)
    assert not np.asarray(aux.pred)[~np.asarray(aux.retained)].any()
    chex.assert_trees_all_close(loss, np.float32(file["loss_f64"]), rtol=1e-5)
    assert_gradients(split(model), grads, file, "grad.")


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_matches(name):
    file = golden(name)
    config = json.loads(str(file["config"]))
    sizes = (config["decoder_dim"], config["encoder_dim"], config["heads"])
    block = CrossBlock(*sizes, self_attn=config["self_attn"], norm_eps=config["norm_eps"], rngs=nnx.Rngs(0))
    tensors = weights(file, "w.")
    places = variables(block)
    for place, variable in places.items():
        layer, _, kind = place.rpartition(".")
        tensor = tensors.pop(f"{layer}.{'bias' if kind == 'bias' else 'weight'}")
        variable[...] = jnp.asarray(linear(tensor) if kind == "kernel" else tensor)
    assert not tensors
    out = quickly(block, lambda block, x, y: block(x, y))(file["x"], file["y"])
    chex.assert_trees_all_close(out, file["out"], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", slow_but(FILES[-1:], FILES))
def test_its_tensors_have_published_names(name, tmp_path):
    file, model = published(name)
    config, tensors, path = json.loads(str(file["config"])), weights(file, "w."), tmp_path / "crossmae.safetensors"
    checkpoints.save_pretrained(model, path)
    written = checkpoints.read_tensors(path)
    assert set(written) == set(tensors)
    for tensor_name, tensor in tensors.items():
        np.testing.assert_array_equal(written[tensor_name], tensor)
    recognised = mim.recognise({tensor_name: tensor.shape for tensor_name, tensor in tensors.items()})
    assert recognised["name"] == "crossmae" and recognised["weight_fm"] and not recognised["self_attn"]
    # Which maps they are cannot be known, only their number.
    blocks = len(recognised.get("indices", range(config["depth"])))
    assert blocks + recognised["use_input"] == len(file["latents"])
    assert recognised["decoder_depth"] == config["decoder_depth"]
    assert recognised["decoder_embed_dim"] == config["decoder_embed_dim"]
    encoder = mim.encoder_tensors(tensors)
    assert "blocks.0.attn.qkv.weight" in encoder and not any(part.startswith(("dec", "wfm")) for part in encoder)
    del tensors["wfm.linear.weight"]
    with pytest.raises(UserError, match=r"decoder\.weights\.kernel"):
        checkpoints.load_pretrained(model, tensors)


def test_the_layers_of_a_block_have_published_names():
    """The self-attention too, which no file of a whole network has."""
    model = mim.create("crossmae", **SMALL, self_attn=True, rngs=nnx.Rngs(0))
    names = {name.replace("decoder_blocks.0.", "") for name in to_published(model) if "decoder_blocks.0." in name}
    files = [golden(name) for name in BLOCKS]
    (file,) = [file for file in files if json.loads(str(file["config"]))["self_attn"]]
    assert names == set(weights(file, "w."))
    checkpoints.load_pretrained(model, to_published(model))


def drawn(model, batch=2, seed=0):
    size = model.encoder.patch_embed.img_size
    images = jax.random.normal(jax.random.key(seed), (batch, *size, 3))
    noise = jax.random.uniform(jax.random.key(seed + 1), (batch, model.num_patches))
    return images, {"noise": noise, "first": jnp.zeros((batch,), jnp.int32)}


@pytest.mark.slow
@pytest.mark.parametrize("reconstruction", ["partial", "progressive"])
@pytest.mark.parametrize("retain", ["random", "furthest"])
def test_skipped_patches_are_rebuilt_or_left_out(reconstruction, retain):
    model = mim.create(
        "crossmae", **SMALL, kept_mask_ratio=0.25, reconstruction=reconstruction, retain=retain, rngs=nnx.Rngs(0)
    )
    images, draws = drawn(model)
    (loss, (aux, decoded)), grads = value_and_grad(model, images, **draws)
    assert np.isfinite(loss) and all(np.abs(gradient).max() > 0 for gradient in grads.values())
    np.testing.assert_array_equal(aux.retained.sum(1), [4, 4])
    np.testing.assert_array_equal(aux.thrown.sum(1), [8, 8])
    last = np.asarray(aux.ids_restore) >= 12
    assert (np.asarray(aux.retained) == last).all() == (retain == "random")
    error = jnp.square(aux.pred - model.target(images)).mean(-1)
    learned = aux.retained if reconstruction == "partial" else aux.masked
    chex.assert_trees_all_close(loss, (error * learned).sum() / learned.sum(), rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(aux.pred).any(-1), learned)
    if reconstruction == "progressive":
        grid = model.decoder.aggregate(fill_grid(decoded, aux.retained), aux.thrown, model.grid)
        pred = model.decoder.pred(model.decoder.norm(grid))
        chex.assert_trees_all_close(aux.pred, jnp.where(aux.masked[:, :, None], pred, 0), atol=1e-5)


@pytest.mark.slow
def test_nothing_skipped_is_the_same_to_the_bit():
    file, full = published(FILES[-1], kept_mask_ratio=None)
    _, progressive = published(FILES[-1], kept_mask_ratio=None, reconstruction="progressive", throw_ratio=0.0)
    images, noise = inputs(file)
    call = lambda model, images, noise: model(images, noise=noise)[0]
    assert quickly(full, call)(images, noise) == quickly(progressive, call)(images, noise)


@pytest.mark.slow
def test_a_mask_token_does_not_see_another():
    """Except with self-attention: so the prediction of a patch does not depend on which others are decoded."""
    images, draws = drawn(mim.create("crossmae", **SMALL, rngs=nnx.Rngs(0)))
    for self_attn in (False, True):
        preds = []
        for kept in (0.75, 0.25):
            model = mim.create("crossmae", **SMALL, kept_mask_ratio=kept, self_attn=self_attn, rngs=nnx.Rngs(0))
            aux = quickly(model, lambda model, images, draws: model(images, **draws)[1])(images, draws)
            preds.append(np.asarray(aux.pred))
        same = np.allclose(*(pred[np.asarray(aux.retained)] for pred in preds), atol=1e-5)
        assert same != self_attn


@pytest.mark.slow
def test_without_weighing_every_block_reads_the_last_output():
    model = mim.create("crossmae", **SMALL, weight_fm=False, rngs=nnx.Rngs(0))
    assert {name for name in variables(model) if "norm" in name and name.startswith("encoder.norm.")}
    images, draws = drawn(model)
    aux = quickly(model, lambda model, images, draws: model(images, **draws)[1])(images, draws)
    masks = aux.masks
    encoded = model.encoder.encode(model.encoder.embed(images, masks.ids_keep), masks.ids_keep)
    chex.assert_trees_all_close(aux.latent[0], model.encoder.final_norm(encoded.tokens.x), atol=1e-5)
    assert "decoder.weights.kernel" not in variables(model) and aux.latent.shape[0] == 1


def test_visible_patches_have_no_prediction_to_draw():
    model = mim.create("crossmae", **SMALL, kept_mask_ratio=0.25, rngs=nnx.Rngs(0))
    images, _ = drawn(model)
    picture = quickly(model, lambda model, images: model.picture(images, jax.random.key(0)))(images)
    np.testing.assert_array_equal(picture.predicted, picture.masked & ~picture.thrown)


@pytest.mark.parametrize("mask_ratio", [0.6, 0.7, 0.75])
@pytest.mark.parametrize("kept", [0.25, 0.3, 0.4])
def test_counts_truncate_in_double_precision(mask_ratio, kept):
    masker = RankMasker((14, 14), mask_ratio, kept_mask_ratio=kept)
    visible, skipped = int(196 * (1 - mask_ratio)), int(196 * (mask_ratio - kept))
    assert (masker.num_visible, masker.num_retained) == (visible, 196 - visible - skipped)
    masks = masker.draw(2, noise=jax.random.uniform(jax.random.key(0), (2, 196)))
    np.testing.assert_array_equal(masks.retained, masks.ids_restore >= visible + skipped)
    np.testing.assert_array_equal(masks.thrown.sum(1), [skipped, skipped])


@pytest.mark.slow
def test_fewer_decoded_patches_cost_less():
    def total(**arguments):
        make = lambda: mim.create("crossmae", encoder="vit_base_patch16_224", **arguments, rngs=nnx.Rngs(0))
        return nnx.eval_shape(make).flops()

    full, quarter = total(), total(kept_mask_ratio=0.25)
    assert quarter.encoder == full.encoder and quarter.patch_embed == full.patch_embed
    # Keys and values of 12 blocks, and the weights of 13 maps, do not depend on the number of decoded patches.
    keys = 12 * 50 * (2 * 768 * 512 + 13 * 768)
    per_query = 12 * (2 * 512**2 + 8 * 512**2 + 2 * 50 * 512) + 512 * 768
    assert full.decoder == keys + 147 * per_query and quarter.decoder == keys + 49 * per_query
    progressive = total(kept_mask_ratio=0.25, reconstruction="progressive")
    assert progressive.decoder == quarter.decoder + 98 * 512 * 768 + 196 * 49 * 512


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kept_mask_ratio": 0.8}, "at most mask_ratio=0.75"),
        ({"kept_mask_ratio": 0.0}, "above 0"),
        ({"kept_mask_ratio": 0.25, "reconstruction": "partial", "throw_ratio": 0.5}, "leave out throw_ratio"),
        ({"throw_ratio": 0.5}, "does not apply"),
        ({"reconstruction": "progressive", "throw_ratio": 0.75}, "below mask_ratio"),
        ({"retain": "last"}, "random"),
        ({"indices": (0, 3)}, "from 0 to 2"),
        ({"indices": (1, 0)}, "ascending"),
        ({"indices": (0,), "weight_fm": False}, "weight_fm=False"),
        ({"decoder_num_heads": 3}, "decoder_num_heads 3"),
        ({"keep_mask_ratio": 0.25}, "Did you mean 'kept_mask_ratio'"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        mim.create("crossmae", **{**SMALL, **arguments}, rngs=nnx.Rngs(0))
