"""Multi-layer feature fusion against the published numbers, and PR-MIM on it."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import assert_gradients, autoencoder_sizes, golden, nhwc, quick_compile, ratio_of, weights

from jaxprune import checkpoints, main, mim
from jaxprune.errors import UserError
from jaxprune.mim.mff import default_indices
from jaxprune.nn.params import merge, split, variables
from jaxprune.ranking.masks import label_masks
from jaxprune.ranking.removals import Deleted, HiddenInEncoder
from jaxprune.train.optimizer import decay_mask

SMALL = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 16,
    "depth": 4,
    "num_heads": 2,
    "decoder_embed_dim": 16,
    "decoder_depth": 1,
    "decoder_num_heads": 2,
}


def published(**arguments):
    file = golden("mim/mff_forward")
    mask_ratio = 1 - ratio_of(int((file["mask"][0] == 0).sum()), file["mask"].shape[1])
    sizes = {**autoencoder_sizes(file), "indices": tuple(file["out_indices"].tolist()), "mask_ratio": mask_ratio}
    return file, mim.create("mff", **{**sizes, **arguments}, rngs=nnx.Rngs(0))


def value_and_grad(model, images, **drawn):
    parts = split(model)
    loss = jax.value_and_grad(lambda params: merge(parts.graph, params, parts.rest)(images, **drawn), has_aux=True)
    return jax.jit(loss, compiler_options=quick_compile())(parts.params)


def test_mff_matches():
    file, model = published()
    checkpoints.load_pretrained(model, weights(file))
    images, noise = jnp.asarray(nhwc(file["imgs"])), jnp.asarray(file["noise"])
    (loss, aux), grads = value_and_grad(model, images, noise=noise)
    np.testing.assert_array_equal(aux.masked, file["mask"].astype(bool))
    np.testing.assert_array_equal(aux.ids_restore, file["ids_restore"])
    chex.assert_trees_all_close(aux.weights, file["weights"], atol=1e-6)
    chex.assert_trees_all_close(aux.latent, file["latent"], atol=2e-5, rtol=0)
    chex.assert_trees_all_close(aux.pred, file["pred"], atol=2e-5, rtol=0)
    chex.assert_trees_all_close(loss, file["loss_norm"], rtol=1e-5)
    assert_gradients(split(model), grads, file, "grad/")


def test_its_tensors_have_published_names(tmp_path):
    file, model = published()
    expected, path = weights(file), tmp_path / "mff.safetensors"
    checkpoints.load_pretrained(model, expected)
    checkpoints.save_pretrained(model, path)
    written = checkpoints.read_tensors(path)
    assert set(written) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(written[name], tensor)
    found = mim.recognise({name: tensor.shape for name, tensor in expected.items()})
    sizes = autoencoder_sizes(file)
    assert found["name"] == "mff" and len(found["indices"]) == len(file["out_indices"])
    assert found["decoder_depth"] == sizes["decoder_depth"]
    del expected["proj_layers.0.bias"]
    with pytest.raises(UserError, match=r"fusion\.proj_layers\.0\.bias"):
        checkpoints.load_pretrained(model, expected)
    with pytest.raises(UserError, match="proj_weights"):
        checkpoints.load_pretrained(mim.create("mae", **sizes, rngs=nnx.Rngs(0)), weights(file))


@pytest.mark.slow
def test_nothing_thrown_is_the_same_to_the_bit():
    file, full = published(mask_ratio=0.6)
    _, progressive = published(mask_ratio=0.6, reconstruction="progressive", throw_ratio=0.0)
    checkpoints.load_pretrained(full, weights(file))
    checkpoints.load_pretrained(progressive, weights(file), new=("decoder.aggregate.*",))
    images, noise = jnp.asarray(nhwc(file["imgs"])), jnp.asarray(file["noise"])
    results = [value_and_grad(model, images, noise=noise) for model in (full, progressive)]
    chex.assert_trees_all_equal(*(found for found, _ in results))
    gradients = results[0][1]
    chex.assert_trees_all_equal(gradients, {name: results[1][1][name] for name in gradients})


@pytest.mark.slow
def test_thrown_patches_are_rebuilt_or_left_out():
    images = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    drawn = {"noise": jax.random.uniform(jax.random.key(1), (2, 16)), "first": jnp.zeros((2,), jnp.int32)}
    for reconstruction in ("partial", "progressive"):
        model = mim.create(
            "mff", **{**SMALL, "depth": 2}, reconstruction=reconstruction, throw_ratio=0.5, rngs=nnx.Rngs(0)
        )
        (loss, aux), grads = value_and_grad(model, images, **drawn)
        assert np.isfinite(loss) and all(np.abs(g).max() > 0 for g in grads.values())
        np.testing.assert_array_equal(aux.thrown.sum(1), [8, 8])
        error = jnp.square(aux.pred - model.target(images)).mean(-1)
        learned = aux.retained if reconstruction == "partial" else aux.masked
        chex.assert_trees_all_close(loss, (error * learned).sum() / learned.sum(), rtol=1e-5)
        assert np.asarray(aux.pred)[np.asarray(aux.thrown)].any() == (reconstruction == "progressive")


@pytest.mark.slow
def test_a_ranker_learns_from_fused_tokens():
    model = mim.create("mff", **{**SMALL, "depth": 2}, norm_pix_loss=False, rngs=nnx.Rngs(0))
    images, noise = jax.random.normal(jax.random.key(0), (2, 32, 32, 3)), jax.random.uniform(jax.random.key(1), (2, 16))
    masks = label_masks(model.draw(images, noise=noise), model.grid)
    pred = jax.jit(lambda images: model(images, noise=noise)[1].pred)(images)
    for removal in (Deleted, HiddenInEncoder):
        anchor = jax.jit(lambda images, removal=removal: removal(model, images, masks, over="masked").anchor)(images)
        expected = jnp.take_along_axis(pred, masks.ids_decode[:, :, None], axis=1)
        chex.assert_trees_all_close(anchor, expected, atol=1e-5)
    # Nothing hidden, the encoder's second pass is its first.
    hidden = HiddenInEncoder(model, images, masks, over="masked")
    again = jax.jit(lambda: hidden.predict(jnp.array([10**6])))()
    chex.assert_trees_all_close(again, hidden.anchor, atol=1e-5)


@pytest.mark.slow
def test_the_published_share_of_operations():
    def total(**arguments):
        make = lambda: mim.create("mff", encoder="vit_base_patch16_224", **arguments, rngs=nnx.Rngs(0))
        return nnx.eval_shape(make).flops().total

    ratio = total(reconstruction="progressive", throw_ratio=0.5) / total()
    assert ratio == pytest.approx(0.73, abs=0.015) and ratio == pytest.approx(0.728, abs=0.001)


@pytest.mark.parametrize(
    ("depth", "expected"), [(12, (0, 2, 4, 6, 8, 11)), (24, (0, 4, 8, 12, 16, 23)), (4, (0, 1, 2, 3)), (1, (0,))]
)
def test_default_indices(depth, expected):
    assert default_indices(depth) == expected


def test_the_last_listed_block_is_not_projected():
    model = mim.create("mff", **SMALL, indices=(0, 2), rngs=nnx.Rngs(0))
    features = [jnp.full((1, 1, 16), float(block)) for block in range(4)]
    fused = 0.5 * model.fusion.proj_layers[0](features[0]) + 0.5 * features[2]
    chex.assert_trees_all_close(model.latent(features), model.encoder.final_norm(fused), atol=1e-6)


def test_tokens_do_not_decay():
    model = mim.create("mff", **SMALL, rngs=nnx.Rngs(0))
    params = split(model).params
    mask = decay_mask(params, model.no_decay)
    assert not mask["encoder.cls_token"] and not mask["decoder.mask_token"] and mask["fusion.proj_weights"]


@pytest.mark.parametrize("indices", [(), (0, 4), (1, 0, 3), (0, 0, 3), (-1, 3)])
def test_bad_indices_are_refused(indices):
    with pytest.raises(UserError, match="from 0 to 3"):
        mim.create("mff", **SMALL, indices=indices, rngs=nnx.Rngs(0))


def test_it_has_the_arguments_of_mae():
    with pytest.raises(UserError, match="Did you mean 'indices'"):
        mim.create("mff", **SMALL, indexes=(0, 3), rngs=nnx.Rngs(0))
    model = mim.create("mff", **SMALL, norm_pix_loss=False, reg_tokens=2, rngs=nnx.Rngs(0))
    assert model.target.name == "pixels" and model.encoder.num_prefix_tokens == 3
    assert set(variables(model)) > {"fusion.proj_weights", "encoder.reg_token"}
    assert model.summary().startswith("MFF, which fuses encoder blocks 0, 1, 2, 3")


def test_its_blocks_depend_on_the_epochs_as_published():
    load = lambda epochs: main.load_config(f"configs/mim/mff.py:epochs={epochs}")
    assert [load(epochs).mim.indices for epochs in (300, 800)] == [(1, 3, 5, 7, 9, 11), (0, 2, 4, 6, 8, 11)]
    data = load(300).data
    assert (data.crop, data.interpolation) == ("random_bordered", "bilinear")
    with pytest.raises(UserError, match="300, 800"):
        load(100)
