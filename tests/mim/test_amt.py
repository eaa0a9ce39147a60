"""AMT against the published numbers, how it draws, and PR-MIM on it."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import autoencoder_sizes, golden, nhwc, quick_compile, weights

from jaxprune import checkpoints, commands, mim
from jaxprune.checkpoints import store
from jaxprune.checkpoints.store import load_params
from jaxprune.commands import pretrain
from jaxprune.commands.pretrain.run import _warn_of_warmup
from jaxprune.commands.shared import training
from jaxprune.errors import UserError
from jaxprune.mim.parts.attention_masking import attention_weights
from jaxprune.mim.parts.encoder_copy import EncoderCopy
from jaxprune.mim.parts.weighted_masker import WeightedMasker, weighted_order
from jaxprune.nn.params import merge, split
from jaxprune.train import workdir as workdirs

SMALL = {
    "img_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depth": 2,
    "num_heads": 2,
    "decoder_embed_dim": 12,
    "decoder_depth": 1,
    "decoder_num_heads": 2,
}


def create(**changes):
    return mim.create("amt", **{**SMALL, **changes}, rngs=nnx.Rngs(0))


def call(model, images, **drawn):
    """Loss and aux, compiled."""
    parts = split(model)
    static = {name: drawn.pop(name) for name in ("warmup",) if name in drawn}
    program = jax.jit(
        lambda params, images, drawn: merge(parts.graph, params, parts.rest)(images, **drawn, **static),
        compiler_options=quick_compile(),
    )
    return program(parts.params, images, drawn)


def test_amt_matches():
    file = golden("mim/amt_forward")
    ratios = {"mask_ratio": float(file["mask_ratio"]), "amt_throw_ratio": float(file["throw_ratio"])}
    model = checkpoints.load_pretrained(create(**autoencoder_sizes(file), **ratios), weights(file))
    given = {name: jnp.asarray(file[name]) for name in ("ids_shuffle", "attn_map")}
    loss, aux = call(model, jnp.asarray(nhwc(file["imgs"])), **given)
    np.testing.assert_array_equal(aux.mask, file["mask"])
    chex.assert_trees_all_close(aux.token_weights, file["token_weights"], rtol=1e-5)
    decoded = np.asarray(aux.pred)[file["mask"] >= 0].reshape(file["pred"].shape)
    chex.assert_trees_all_close(decoded, file["pred"], atol=2e-5, rtol=0)
    assert not np.asarray(aux.pred)[file["mask"] < 0].any()
    chex.assert_trees_all_close(loss, file["loss_norm"], rtol=1e-5)


def test_what_weighs_more_is_drawn_earlier():
    """Two patches are masked of four; with P(first = i) = w_i / sum(w), as drawing without replacement has it."""
    weights = np.array([0.5, 0.3, 0.2, 0.0], np.float32)
    noise = jax.random.uniform(jax.random.key(0), (20_000, 4))
    order = np.asarray(jax.jit(weighted_order)(jnp.broadcast_to(weights, noise.shape), noise))
    np.testing.assert_allclose(np.bincount(order[:, 0], minlength=4) / len(order), weights, atol=0.015)
    second = np.bincount(order[order[:, 0] == 0, 1], minlength=4) / (order[:, 0] == 0).sum()
    np.testing.assert_allclose(second, [0.0, 0.6, 0.4, 0.0], atol=0.015)
    assert (order[:, 3] == 3).all()


def test_the_first_are_masked_the_next_thrown_and_the_last_visible():
    masker = WeightedMasker((2, 3), num_visible=2, num_retained=3)
    order = jnp.array([[4, 1, 0, 5, 3, 2], [0, 1, 2, 3, 4, 5]])
    masks = masker.draw(2, ids_shuffle=order)
    np.testing.assert_array_equal(masks.ids_keep, [[3, 2], [4, 5]])
    np.testing.assert_array_equal(masks.retained, [[1, 1, 0, 0, 1, 0], [1, 1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(masks.thrown, [[0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 0, 0]])
    np.testing.assert_array_equal(masks.ids_present, [[0, 1, 2, 3, 4], [0, 1, 2, 4, 5]])
    for row in range(2):
        np.testing.assert_array_equal(np.argsort(masks.ids_restore[row])[:2], masks.ids_keep[row])
    noise = masker.draw(1, noise=jnp.array([[0.9, 0.1, 0.5, 0.8, 0.2, 0.7]]))
    np.testing.assert_array_equal(noise.ids_keep, [[4, 1]])
    with pytest.raises(UserError, match="key="):
        masker.draw(1)


def test_the_counts_are_the_published_ones():
    sizes = {"img_size": 224, "patch_size": 16, "embed_dim": 16, "num_heads": 1, "depth": 1, "decoder_depth": 1}
    abstract = lambda **options: nnx.eval_shape(lambda: mim.create("amt", **sizes, **options, rngs=nnx.Rngs(0)))
    counts = lambda masker: (masker.num_retained, masker.num_masked - masker.num_retained, masker.num_visible)
    amt = abstract()
    assert amt.reconstruction == "partial" and counts(amt.masker) == (88, 78, 30)
    assert amt.amt_throw_ratio == 0.4 and counts(amt.warmup_masker) == (147, 0, 49)
    assert counts(abstract(reconstruction="full").masker) == (166, 0, 30)
    assert counts(abstract(reconstruction="progressive", throw_ratio=0.5).masker) == (68, 98, 30)
    assert counts(abstract(reconstruction="progressive", amt_throw_ratio=0.2).masker) == (88, 39, 69)


def test_epochs_0_to_40_are_mae():
    model = create()
    assert model.keepers(steps_per_epoch=10) == (EncoderCopy(first=410, period=400),)
    assert [model.phase(epoch) for epoch in (0, 40, 41)] == [{"warmup": True}, {"warmup": True}, {}]


@pytest.mark.slow
def test_the_cost_is_that_of_its_documentation():
    mae, amt = (
        nnx.eval_shape(lambda name=name: mim.create(name, encoder="vit_base_patch16_224", rngs=nnx.Rngs(0)))
        for name in ("mae", "amt")
    )
    mae = mae.flops()
    assert amt.flops().total / mae.total == pytest.approx(0.607, abs=0.001) and amt.flops().observe == 0
    assert amt.flops(as_published=False).observe / 1e9 == pytest.approx(16.46, abs=0.01)


@pytest.mark.slow
def test_nothing_thrown_is_exactly_mae_at_the_same_mask():
    images, key = jax.random.normal(jax.random.key(1), (2, 32, 32, 3)), jax.random.key(0)
    full = call(create(reconstruction="full"), images, key=key)
    chex.assert_trees_all_equal(call(create(reconstruction="progressive", throw_ratio=0.0), images, key=key), full)
    loss, aux = full
    mae = mim.create("mae", **SMALL, mask_ratio=54 / 64, rngs=nnx.Rngs(0))
    assert mae.masker.num_visible == aux.masks.ids_keep.shape[1] == 10
    # MAE sees the patches of least noise, in that order.
    same, _ = call(mae, images, noise=aux.ids_restore.astype(jnp.float32))
    np.testing.assert_array_equal(same, loss)


@pytest.mark.slow
def test_a_warm_up_is_exactly_mae():
    images, key = jax.random.normal(jax.random.key(1), (2, 32, 32, 3)), jax.random.key(0)
    expected = call(mim.create("mae", **SMALL, rngs=nnx.Rngs(0)), images, key=key)[0]
    for reconstruction in ("partial", "progressive"):
        loss, aux = call(create(reconstruction=reconstruction), images, key=key, warmup=True)
        assert loss == expected and aux.token_weights is None and not aux.thrown.any()


@pytest.mark.slow
def test_all_that_is_not_visible_is_learnt_from_when_it_is_rebuilt():
    images, key = jax.random.normal(jax.random.key(1), (2, 32, 32, 3)), jax.random.key(0)
    model = create(reconstruction="progressive")
    loss, aux = call(model, images, key=key)
    assert aux.thrown.sum() == 2 * 26 and np.abs(np.asarray(aux.pred)[np.asarray(aux.thrown)]).min() > 0
    error = np.square(np.asarray(aux.pred) - np.asarray(model.target(images))).mean(-1)
    np.testing.assert_allclose(loss, error[np.asarray(aux.masked)].mean(), rtol=1e-5)


def test_patches_weigh_what_the_last_block_attends_to():
    images = jax.random.normal(jax.random.key(1), (2, 32, 32, 3))
    encoder = create(reg_tokens=1).encoder
    found = jax.jit(lambda images: attention_weights(encoder, images), compiler_options=quick_compile())(images)

    def by_hand(images):
        before, block = encoder.run_blocks(images, stop=1).tokens.x, encoder.blocks[1]
        heads = block.attn.project(block.norm1(before))
        logits = jnp.einsum("bhe,bhne->bhn", heads.q[:, :, 0], heads.k) * heads.q.shape[-1] ** -0.5
        attention = jax.nn.softmax(logits)[:, :, 2:]
        low, high = attention.min(-1, keepdims=True), attention.max(-1, keepdims=True)
        return ((attention - low) / (high - low)).mean(1)

    chex.assert_trees_all_close(found, jax.jit(by_hand, compiler_options=quick_compile())(images), atol=1e-5)
    assert found.shape == (2, 64)


@pytest.mark.slow
def test_a_copy_of_the_encoder_weighs_patches():
    """Its weights decide, not those of the encoder that learns; and no gradient reaches either that way."""
    images, key = jax.random.normal(jax.random.key(1), (2, 32, 32, 3)), jax.random.key(0)
    model, other = create(), mim.create("amt", **SMALL, rngs=nnx.Rngs(7))
    kept = {name: array for name, array in split(other).params.items() if name.startswith("encoder.")}
    _, aux = call(model, images, key=key, snapshot=kept)
    chex.assert_trees_all_close(aux.token_weights, call(other, images, key=key)[1].token_weights, atol=1e-6)
    own = {name: array for name, array in split(model).params.items() if name.startswith("encoder.")}
    chex.assert_trees_all_equal(call(model, images, key=key, snapshot=own)[0], call(model, images, key=key)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_ratio": 0.6, "amt_throw_ratio": 0.4}, "leave at least one visible"),
        ({"throw_ratio": 0.9}, "throw_ratio 0.9: raise mask_ratio"),
        ({"reconstruction": "full", "throw_ratio": 0.4}, "reconstruction='progressive'"),
        ({"mask_ratio": 0.01}, "would be decoded at mask_ratio 0.01"),
        ({"refresh_epochs": 0}, "refresh_epochs=0"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        create(**arguments)


def config(**changes):
    settings = pretrain.defaults(mim={"name": "amt", "encoder": "vit_base_patch16_224", **changes})
    for name, size in (("decoder_embed_dim", 16), ("decoder_depth", 1), ("decoder_num_heads", 2)):
        settings.mim[name] = size
    settings = pretrain.smoke(settings)
    settings.epochs = 3.0
    return settings


@pytest.mark.parametrize(("warmup", "warned"), [(0, 0), (2, 0), (3, 1), (4, 1)])
def test_a_warm_up_as_long_as_the_run_is_told(warmup, warned, caplog):
    settings = config(warmup_epochs=warmup)
    for steps in (0, 6):  # of 4 an epoch, or stretched
        settings.steps = steps
        caplog.clear()
        _warn_of_warmup(settings, create(warmup_epochs=warmup), training.Length(4, steps or 12))
        assert caplog.text.count(f"3 epochs do not exceed config.mim.warmup_epochs={warmup}") == warned


@pytest.mark.slow
def test_a_resumed_run_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    """It was MAE for an epoch of 4 steps; the copy is of step 4, and of step 8 in the end. The break is at step 6."""
    settings = config(warmup_epochs=1, refresh_epochs=1)
    whole = commands.find("pretrain")(settings, tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(training, "length", lambda *_: training.Length(per_epoch=4, total=6))
        pretrain.run(settings, tmp_path / "run")
    (tmp_path / "run" / workdirs.COMPLETE).unlink()
    resumed = pretrain.run(settings, tmp_path / "run")
    assert resumed["steps"] == whole["steps"] == 12 and resumed["loss"] == whole["loss"]
    kept, params = (store._load(tmp_path / "run", prefix) for prefix in ("extra/snapshot/", "params/"))
    assert kept and all(name.startswith("encoder.") for name in kept)
    chex.assert_trees_all_equal(kept, store._load(tmp_path / "whole", "extra/snapshot/"))
    chex.assert_trees_all_equal(params, load_params(tmp_path / "whole"))
    keepers = checkpoints.load_model(tmp_path / "run").keepers
    assert keepers(4) == (EncoderCopy(4, 4),) and keepers(2.5) == (EncoderCopy(3, 3),)
