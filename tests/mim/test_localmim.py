"""LocalMIM with histograms of oriented gradients against the published numbers, and PR-MIM on it."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import golden, nhwc, quick_compile, weights

from jaxprune import checkpoints, mim
from jaxprune.errors import UserError
from jaxprune.mim.localmim import at_level, default_indices
from jaxprune.nn.params import merge, split
from jaxprune.ranking import pseudo_labels

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
    img, patch, dim, depth, heads, decoder_dim, decoder_depth, decoder_heads = (int(v) for v in file["cfg"])
    model = mim.create(
        "localmim",
        img_size=img,
        patch_size=patch,
        embed_dim=dim,
        depth=depth,
        num_heads=heads,
        mlp_ratio=float(file["mlp_ratio"]),
        decoder_embed_dim=decoder_dim,
        decoder_depth=decoder_depth,
        decoder_num_heads=decoder_heads,
        **arguments,
        rngs=nnx.Rngs(0),
    )
    return file, model


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
    for level in range(4):
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
    found = mim.recognise({name: tensor.shape for name, tensor in expected.items()})
    assert found == {
        "name": "localmim",
        "decoder_embed_dim": 8,
        "decoder_depth": 1,
        "decoder_num_heads": 1,
        "num_bins": 9,
    }
    changed = {**expected, "decoder.0.pred.3.weight": expected["decoder.0.pred.3.weight"][:, :1]}
    with pytest.raises(UserError, match=r"decoder\.0\.pred\.3\.weight"):
        checkpoints.load_pretrained(model, changed)
    del expected["norm.3.bias"]
    with pytest.raises(UserError, match=r"encoder\.norm\.bias"):
        checkpoints.load_pretrained(model, expected)
