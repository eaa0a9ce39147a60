"""MAE, plain partial reconstruction and PR-MIM against the published numbers."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import assert_gradients, autoencoder_sizes, golden, golden_names, nhwc, slow_but, weights

from jaxprune import checkpoints, mim
from jaxprune.errors import UserError
from jaxprune.mim import Pixels
from jaxprune.mim.parts.rebuild_thrown import fill_grid
from jaxprune.nn.params import merge, split


def published(file, ignored=(), **arguments):
    sizes = {**autoencoder_sizes(file), "mask_ratio": float(file["mask_ratio"])}
    model = mim.create("mae", **sizes, **arguments, rngs=nnx.Rngs(0))
    return checkpoints.load_pretrained(model, weights(file), ignored=ignored)


def run(model, images, **given):
    """Loss, aux, loss on raw pixels, decoded tokens, and gradients."""
    parts = split(model)

    def loss_fn(params):
        model = merge(parts.graph, params, parts.rest)
        loss, aux = model(images, **given)
        decoded = model.decoder.decode(aux.latent, aux.masks)
        model.target = Pixels(model.patch_size)
        return loss, (aux, model(images, **given)[0], decoded)

    (loss, (aux, raw, decoded)), grads = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(parts.params)
    return loss, aux, raw, decoded, grads


MAE_FILES = golden_names("mim/mae_forward_*")


@pytest.mark.parametrize("name", slow_but(MAE_FILES[:1], MAE_FILES))
@pytest.mark.parametrize("norm", [pytest.param(False, marks=pytest.mark.slow), True], ids=["raw", "norm"])
def test_mae_matches(name, norm):
    file = golden(name)
    model = published(file, norm_pix_loss=norm)
    loss, aux, _, _, grads = run(model, jnp.asarray(nhwc(file["imgs"])), noise=jnp.asarray(file["noise"]))
    kind = "norm" if norm else "raw"
    np.testing.assert_array_equal(aux.masked, file["mask"].astype(bool))
    np.testing.assert_array_equal(aux.ids_restore, file["ids_restore"])
    chex.assert_trees_all_close(aux.latent, file["latent"], atol=2e-5, rtol=0)
    chex.assert_trees_all_close(aux.pred, file["pred"], atol=2e-5, rtol=0)
    chex.assert_trees_all_close(loss, file[f"loss_{kind}"], rtol=1e-5)
    assert_gradients(split(model), grads, file, f"grad_{kind}/")


PR_FILES = golden_names("mim/prmim_*")
THROWING = [name for name in PR_FILES if golden(name)["rho_d"] > 0]


# One ratio on few patches is quick.
QUICK = [(THROWING[0], "thrown")]
PR_CASES = [
    pytest.param(name, mode, marks=[] if (name, mode) in QUICK else pytest.mark.slow)
    for name in PR_FILES
    for mode in ("thrown", "all", "residual")
]


@pytest.mark.parametrize(("name", "aggregation"), PR_CASES)
def test_progressive_reconstruction_matches(name, aggregation):
    file = golden(name)
    model = published(
        file,
        reconstruction="progressive",
        throw_ratio=float(file["rho_d"]),
        kernel_size=int(file["kernel"]),
        aggregation=aggregation,
    )
    images, noise = jnp.asarray(nhwc(file["imgs"])), jnp.asarray(file["noise"])
    first = jnp.asarray(file["first_in_masked"])
    loss, aux, raw, decoded, grads = run(model, images, noise=noise, first=first)
    np.testing.assert_array_equal(aux.masked, file["mask"].astype(bool))
    np.testing.assert_array_equal(aux.retained, file["retained"].astype(bool))
    np.testing.assert_array_equal(aux.thrown, file["thrown"].astype(bool))
    np.testing.assert_array_equal(aux.ids_restore, file["ids_restore"])
    chex.assert_trees_all_close(aux.latent, file["latent"], atol=2e-5, rtol=0)
    prefix = f"agg_{aggregation}"
    if aggregation == "thrown":
        chex.assert_trees_all_close(aux.pred, file[f"{prefix}/pred"], atol=2e-5, rtol=0)
        grid = fill_grid(decoded[:, 1:], ~aux.thrown)
        tokens = jax.jit(lambda grid, thrown: model.decoder.aggregate(grid, thrown, model.grid))(grid, aux.thrown)
        chex.assert_trees_all_close(tokens, file[f"{prefix}/tokens"], atol=2e-5, rtol=0)
        chex.assert_trees_all_close(decoded, file["dec_out_kept"], atol=2e-5, rtol=0)
        assert decoded.shape[1] == int(file["dec_tokens"])
        chex.assert_trees_all_close(raw, file[f"{prefix}/loss_raw"], rtol=1e-5)
    else:
        images, _, outputs = file[f"{prefix}/pred_head"].shape
        chex.assert_trees_all_close(aux.pred[:images, :, :outputs], file[f"{prefix}/pred_head"], atol=2e-5, rtol=0)
    chex.assert_trees_all_close(loss, file[f"{prefix}/loss_norm"], rtol=1e-5)
    assert_gradients(split(model), grads, file, f"{prefix}/grad/")


@pytest.mark.parametrize("name", slow_but(THROWING[:1], PR_FILES))
def test_plain_partial_reconstruction_matches(name):
    file = golden(name)
    model = published(
        file, ignored=("agg.*",), reconstruction="partial", throw_ratio=float(file["rho_d"]), norm_pix_loss=True
    )
    given = {"noise": jnp.asarray(file["noise"]), "first": jnp.asarray(file["first_in_masked"])}
    images = jnp.asarray(nhwc(file["imgs"]))
    parts = split(model)

    @jax.jit
    def both(params):
        model = merge(parts.graph, params, parts.rest)
        loss, aux = model(images, **given)
        model.target = Pixels(model.patch_size)
        return loss, aux, model(images, **given)[0]

    loss, aux, raw = both(parts.params)
    chex.assert_trees_all_close(loss, file["plain/loss_norm"], rtol=1e-5)
    kept = jnp.take_along_axis(aux.pred, jnp.asarray(file["kept_idx"])[:, :, None], axis=1)
    chex.assert_trees_all_close(kept, file["plain/pred_kept"], atol=2e-5, rtol=0)
    assert not np.asarray(aux.pred)[np.asarray(aux.thrown)].any()
    chex.assert_trees_all_close(raw, file["plain/loss_raw"], rtol=1e-5)


@pytest.mark.slow
def test_nothing_thrown_is_exactly_mae():
    file = golden(PR_FILES[0])
    images, noise = jnp.asarray(nhwc(file["imgs"])), jnp.asarray(file["noise"])
    mae = published(file, ignored=("agg.*",))
    options = {"throw_ratio": 0.0, "kernel_size": int(file["kernel"])}
    progressive = published(file, reconstruction="progressive", **options)
    loss, aux, *_ = run(mae, images, noise=noise)
    other, other_aux, *_ = run(progressive, images, noise=noise)
    chex.assert_trees_all_equal((loss, aux.pred), (other, other_aux.pred))


SMALL = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 16,
    "depth": 1,
    "num_heads": 2,
    "decoder_embed_dim": 16,
    "decoder_depth": 1,
    "decoder_num_heads": 2,
}


@pytest.mark.parametrize("retain", ["furthest", "random"])
def test_the_key_draws_masks_of_the_promised_sizes(retain, rng_key):
    model = mim.create("mae", **SMALL, reconstruction="progressive", retain=retain, throw_ratio=0.3, rngs=nnx.Rngs(0))
    images = jax.random.normal(rng_key, (3, 32, 32, 3))
    step = jax.jit(lambda images, key: model(images, key=key))
    loss, aux = step(images, rng_key)
    assert np.isfinite(loss)
    np.testing.assert_array_equal(aux.masked.sum(1), [12] * 3)
    np.testing.assert_array_equal(aux.thrown.sum(1), [4] * 3)
    np.testing.assert_array_equal(aux.retained | aux.thrown, aux.masked)
    assert not np.array_equal(aux.masked[0], aux.masked[1])
    chex.assert_trees_all_equal(step(images, rng_key)[0], loss)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_ratio": 1.0}, "mask_ratio"),
        ({"mask_ratio": 0.99}, "visible"),
        ({"mask_ratio": 0.0}, "mask_ratio=0.0 masks none of 16 patches"),
        ({"reconstruction": "progressive", "throw_ratio": 0.75}, "below mask_ratio"),
        ({"reconstruction": "progressive", "throw_ratio": 0.9}, "throw_ratio 0.9"),
        ({"reconstruction": "partial", "throw_ratio": -0.1}, "throw_ratio"),
        ({"throw_ratio": 0.5}, "reconstruction='progressive'"),
        ({"reconstruction": "progressiv"}, "Did you mean 'progressive'"),
        ({"reconstruction": "progressive", "aggregation": "both"}, "aggregation"),
        ({"reconstruction": "progressive", "kernel_size": 6}, "an odd one"),
        ({"embed_dim": 18}, "4"),
        ({"num_classes": 3}, "MAE has no argument 'num_classes'"),
        ({"reg_token": 3}, "Did you mean 'reg_tokens'"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        mim.create("mae", **{**SMALL, **arguments}, rngs=nnx.Rngs(0))


def test_the_encoder_takes_the_arguments_of_a_vit():
    model = mim.create("mae", **SMALL, reg_tokens=2, dist_token=True, init_values=0.1, norm_eps=1e-5, rngs=nnx.Rngs(0))
    assert model.encoder.num_prefix_tokens == model.decoder.num_prefix_tokens == 4
    assert model.decoder.pos_embed.shape == (1, 20, 16)
    for block in (model.encoder.blocks[0], model.decoder.blocks[0]):
        assert block.norm1.eps == 1e-5 and block.ls1.gamma[0] == np.float32(0.1)
    images = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    loss, aux = jax.jit(lambda images, key: model(images, key=key))(images, jax.random.key(1))
    assert np.isfinite(loss) and aux.latent.shape == (2, 4 + 4, 16) and aux.pred.shape == (2, 16, 192)


def test_randomness_must_come_from_somewhere():
    model = mim.create("mae", **SMALL, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="key"):
        model(jnp.zeros((1, 32, 32, 3)))
