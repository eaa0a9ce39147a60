import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from support import depth_of, golden, in_names

from jaxprune import models
from jaxprune.errors import UserError
from jaxprune.reduction.sinkhorn import Sinkhorn
from jaxprune.train import optimizer

TABLES, SCHEDULES, STEPS = (golden(f"mim/{name}") for name in ("layer_decay_tables", "lr_schedules", "optimizers"))


@pytest.mark.parametrize("case", in_names(SCHEDULES, r"(mae\d+)/cfg"))
def test_warmup_cosine_matches_mae(case):
    lr, min_lr, warmup, epochs = SCHEDULES[f"{case}/cfg"]
    # The file knows fractions of epochs and no steps.
    schedule = optimizer.warmup_cosine(lr, min_lr, warmup, epochs, steps_per_epoch=1250)
    np.testing.assert_allclose(
        schedule(SCHEDULES[f"{case}/epoch"] * 1250), SCHEDULES[f"{case}/lr"], rtol=1e-9, atol=1e-18
    )


def test_schedules_match_simmim():
    lr, min_lr, warmup_lr, warmup, epochs = SCHEDULES["simmim_cos/cfg"]
    per_epoch = int(SCHEDULES["simmim_cos/steps_per_epoch"])
    cosine = optimizer.warmup_cosine(lr, min_lr, warmup, epochs, per_epoch, warmup_lr=warmup_lr, cosine_from_start=True)
    np.testing.assert_allclose(cosine(SCHEDULES["simmim_cos/step"]), SCHEDULES["simmim_cos/lr"], rtol=1e-9)
    lr, warmup_lr, warmup, milestone, gamma = SCHEDULES["simmim_multistep/cfg"]
    per_epoch = int(SCHEDULES["simmim_multistep/steps_per_epoch"])
    steps = optimizer.warmup_multistep(lr, warmup, [milestone], per_epoch, warmup_lr=warmup_lr, gamma=gamma)
    np.testing.assert_allclose(steps(SCHEDULES["simmim_multistep/step"]), SCHEDULES["simmim_multistep/lr"], rtol=1e-9)


RECIPE = golden("token_reduction/lr_schedule")


@pytest.mark.parametrize("case", in_names(RECIPE, r"cfg_(\d+)"))
def test_schedules_match_the_token_reduction_recipe(case):
    file = RECIPE
    epochs, warmup, per_epoch, lr, min_lr, warmup_lr = file[f"cfg_{case}"]
    schedule = optimizer.warmup_cosine(
        lr, min_lr, warmup, epochs, int(per_epoch), warmup_lr=warmup_lr, cosine_from_start=True
    )
    steps = np.arange(len(file[f"lr_{case}"]), dtype=np.float64)
    np.testing.assert_allclose(schedule(steps), file[f"lr_{case}"], rtol=1e-9)


def test_schedules_trace_and_agree_with_the_host():
    for schedule in (
        optimizer.warmup_cosine(1e-3, 1e-6, 2, 10, 5),
        optimizer.warmup_cosine(1e-3, 1e-6, 0, 10, 5),
        optimizer.warmup_cosine(1e-3, 0.0, 10, 10, 5),
        optimizer.warmup_multistep(1e-3, 2, (4, 7), 5),
    ):
        steps = np.arange(51)
        np.testing.assert_allclose(jax.jit(schedule)(jnp.asarray(steps)), schedule(steps), rtol=1e-4, atol=1e-9)
    with pytest.raises(UserError, match="warmup_epochs=5 is longer"):
        optimizer.warmup_cosine(1e-3, 0.0, 5, 4, 10)
    assert optimizer.effective_lr(1.5e-4, 4096) == pytest.approx(2.4e-3)


@pytest.mark.parametrize("case", in_names(TABLES, r"(vit_d\d+_decay\d+)/name"))
def test_layer_scales_and_decay_match_the_fine_tuning_of_mae(case):
    params = _table_params(case, TABLES[f"{case}/weight_decay"] > 0)
    depth = depth_of(params)
    layers = _host("vit", depth=depth, num_heads=1).parameter_layers(params)
    decay = np.unique(TABLES[f"{case}/lr_scale"])[-2]  # of the last block; the head's scale is 1
    scales = optimizer.layer_scales(layers, depth, decay)
    np.testing.assert_allclose(list(scales.values()), TABLES[f"{case}/lr_scale"], rtol=1e-7)
    mask = optimizer.decay_mask(params, exempt=("pos_embed", "cls_token"))
    np.testing.assert_array_equal(list(mask.values()), TABLES[f"{case}/weight_decay"] > 0)


def test_layer_scales_match_simmim():
    stages, blocks = TABLES["simmim_swin/depths"].tolist(), int(TABLES["simmim_vit/layer_id"].max()) - 1
    for case, host, depth in (
        ("simmim_vit", _host("vit", depth=blocks, num_heads=1), blocks),
        ("simmim_swin", _host("swin", depths=stages, num_heads=1, window_size=1), sum(stages)),
    ):
        # Published code counts what lies between two stages to the first, and here it is part of the second.
        ours = lambda name: re.sub(r"(\d+)\.downsample", lambda found: f"{int(found[1]) + 1}.downsample", name)
        layers = host.parameter_layers([ours(name) for name in TABLES[f"{case}/name"].tolist()])
        np.testing.assert_array_equal(list(layers.values()), TABLES[f"{case}/layer_id"])
        scales = optimizer.layer_scales(layers, depth, TABLES[f"{case}/decay"])
        np.testing.assert_allclose(list(scales.values()), TABLES[f"{case}/scale"], rtol=1e-7)


def _host(name, **sizes):
    """A network without arrays."""
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 2, "num_classes": 3, **sizes}
    return nnx.eval_shape(lambda: models.create(name, **sizes, rngs=nnx.Rngs(0)))


def test_pre_training_decays_the_tokens_but_no_vector_and_no_bias():
    decayed = TABLES["mae_wd/decay"] == 1
    mask = optimizer.decay_mask(_table_params("mae_wd", decayed))
    np.testing.assert_array_equal(list(mask.values()), decayed)
    two_axes = {"encoder.cls_token": np.zeros((1, 1, 2)), "rel_pos.bias": np.zeros((3, 2))}
    assert optimizer.decay_mask(two_axes) == {"encoder.cls_token": True, "rel_pos.bias": False}
    assert not optimizer.decay_mask(two_axes, exempt=("*cls_token",))["encoder.cls_token"]


def _table_params(case, decayed):
    """Zeros under the table's names: tokens of three axes, what decays of two, vectors of one."""
    tokens = ("cls_token", "pos_embed", "mask_token")
    axes = {name: 3 if name in tokens else 1 + int(d) for name, d in zip(TABLES[f"{case}/name"], decayed, strict=True)}
    return {str(name): np.zeros((1,) * n, np.float32) for name, n in axes.items()}


@pytest.mark.parametrize("case", in_names(STEPS, r"(adamw_\w+)/W0"))
def test_adamw_matches_torch(case):
    arrays = {name.split("/")[1]: value for name, value in STEPS.items() if name.startswith(f"{case}/")}
    b1, b2 = arrays["betas"]
    lrs = jnp.asarray(arrays["lr"], jnp.float32)
    params = {"w.kernel": jnp.asarray(arrays["W0"]), "w.bias": jnp.asarray(arrays["b0"])}
    tx = optimizer.adamw(
        lambda step: lrs[step],
        b1=b1,
        b2=b2,
        eps=float(arrays["eps"]),
        weight_decay=float(arrays["wd_W"]),
        decay_mask=optimizer.decay_mask(params),
    )
    _follow(tx, params, arrays)


def test_lars_matches_mae():
    arrays = {name.split("/")[1]: value for name, value in STEPS.items() if name.startswith("lars/")}
    options = {name: float(arrays[name]) for name in ("momentum", "trust")}
    tx = optimizer.lars(float(arrays["lr"]), weight_decay=float(arrays["wd"]), **options)
    _follow(tx, {"w.kernel": jnp.asarray(arrays["W0"]), "w.bias": jnp.asarray(arrays["b0"])}, arrays)


def _follow(tx, params, arrays):
    state, update = tx.init(params), jax.jit(tx.update)
    for gw, gb, w, b in zip(*(arrays[name] for name in ("gW", "gb", "W", "b")), strict=True):
        updates, state = update({"w.kernel": jnp.asarray(gw), "w.bias": jnp.asarray(gb)}, state, params)
        params = optax.apply_updates(params, updates)
        chex.assert_trees_all_close(params, {"w.kernel": w, "w.bias": b}, atol=1e-6)


def test_lars_decays_matrices_before_the_trust_ratio():
    params = {"w": jnp.full((2, 2), 2.0), "b": jnp.full(2, 2.0)}
    grads = jax.tree.map(jnp.ones_like, params)
    tx = optimizer.lars(1.0, trust=0.5, weight_decay=0.25)
    updates, _ = tx.update(grads, tx.init(params), params)
    # The matrix: g = 1 + 0.25 · 2 = 1.5, ratio 0.5 · 4 / 3; the vector keeps its gradient.
    chex.assert_trees_all_close(updates, {"w": jnp.full((2, 2), -1.0), "b": jnp.full(2, -1.0)}, atol=1e-6)


def test_clipping_matches_torch():
    grads = {"a": jnp.asarray(STEPS["clip/g0"]), "b": jnp.asarray(STEPS["clip/g1"])}
    # With b1 = b2 = 0 and a huge eps, Adam's direction is the gradient over eps.
    tx = optimizer.adamw(1e9, b1=0.0, b2=0.0, eps=1e9, clip_norm=float(STEPS["clip/max_norm"]))
    updates, _ = tx.update(grads, tx.init(grads), grads)
    expected = {"a": -STEPS["clip/c0"], "b": -STEPS["clip/c1"]}
    chex.assert_trees_all_close(updates, expected, atol=1e-6)


def test_layer_scales_apply_to_update_and_decay():
    params = {"blocks.0.w": jnp.ones((2, 2)), "head.w": jnp.ones((2, 2))}
    grads = jax.tree.map(jnp.ones_like, params)
    tx = optimizer.adamw(
        0.1, weight_decay=0.5, layer_scales=optimizer.layer_scales({"blocks.0.w": 1, "head.w": 2}, 1, 0.5)
    )
    updates, _ = tx.update(grads, tx.init(params), params)
    chex.assert_trees_all_close(
        updates, {"blocks.0.w": jnp.full((2, 2), -0.075), "head.w": jnp.full((2, 2), -0.15)}, atol=1e-6
    )


def test_frozen_parameters_keep_their_value_and_have_no_moments():
    params = {"blocks.0.w": jnp.ones((2, 2)), "head.w": jnp.ones((2, 2)), "head.bias": jnp.ones(2)}
    grads = jax.tree.map(jnp.ones_like, params)
    layers = {"blocks.0.w": 1, "head.w": 2, "head.bias": 2}
    options = {"decay_mask": optimizer.decay_mask(params), "layer_scales": optimizer.layer_scales(layers, 1, 0.5)}
    tx = optimizer.adamw(0.1, weight_decay=0.5, clip_norm=1.0, frozen=("blocks.*",), **options)
    state = tx.init(params)
    updates, _ = jax.jit(tx.update)(grads, state, params)
    assert not np.any(updates["blocks.0.w"])
    assert np.all(updates["head.w"]) and np.all(updates["head.bias"])
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) <= 2 * (4 + 2) + 2
    with pytest.raises(UserError, match=r"'block\.\*' matches no parameter"):
        optimizer.lars(0.1, frozen=("block.*",)).init(params)


def test_unit_rows_are_those_of_a_parameter_that_every_forward_pass_overwrites():
    """As the published Sinkhorn: normalised in place before the gradient, which does not flow through that."""
    rng = np.random.default_rng(0)
    v, w = rng.normal(size=(3, 4)), rng.normal(size=4)
    params = {"v": jnp.asarray(v / np.linalg.norm(v, axis=1, keepdims=True)), "w": jnp.asarray(w)}
    made = optimizer.with_constraints(optimizer.adamw(0.5, weight_decay=0.1), Sinkhorn.constraints)
    state, plain = made.init(params), optimizer.adamw(0.5, weight_decay=0.1)
    theirs, their_state = dict(params), plain.init(params)
    for _ in range(10):
        grads = {name: jnp.asarray(rng.normal(size=value.shape)) for name, value in params.items()}
        updates, state = made.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        theirs["v"] = theirs["v"] / jnp.linalg.norm(theirs["v"], axis=1, keepdims=True)
        updates, their_state = plain.update(grads, their_state, theirs)
        theirs = optax.apply_updates(theirs, updates)
        length_one = theirs["v"] / jnp.linalg.norm(theirs["v"], axis=1, keepdims=True)
        chex.assert_trees_all_close(params, {**theirs, "v": length_one}, atol=1e-5)
    assert optimizer.with_constraints(plain, {}) is plain


def _follow_both(first, second, params, steps=4):
    """Checks that two optimizers give the same parameters."""
    rng, states = np.random.default_rng(0), [first.init(params), second.init(params)]
    results = [params, params]
    for _ in range(steps):
        grads = {name: jnp.asarray(rng.normal(size=value.shape), jnp.float32) for name, value in params.items()}
        for i, tx in enumerate((first, second)):
            updates, states[i] = tx.update(grads, states[i], results[i])
            results[i] = optax.apply_updates(results[i], updates)
    chex.assert_trees_all_close(*results, rtol=1e-6)
    assert not np.allclose(results[0]["blocks.0.w"], params["blocks.0.w"], atol=1e-3)


LAMB_PARAMS = {
    "blocks.0.w": np.full((2, 3), 2.0, np.float32),
    "head.w": np.eye(3, dtype=np.float32),
    "head.bias": np.ones(3, np.float32),
}


def test_lamb_has_the_trust_ratio_of_the_decayed_direction():
    mask, rate = optimizer.decay_mask(LAMB_PARAMS), lambda step: 0.1 / (1 + step)
    options = {"b1": 0.8, "b2": 0.9, "eps": 1e-6, "weight_decay": 0.3}
    reference = optax.lamb(rate, mask=mask, **options)
    _follow_both(optimizer.lamb(rate, decay_mask=mask, **options), reference, LAMB_PARAMS)


def test_lamb_takes_layer_scales_behind_the_trust_ratio_and_clips_in_front():
    """A scale before the ratio would cancel: of one step, each update is scale · rate · ‖p‖ long."""
    scales = {"blocks.0.w": 0.25, "head.w": 1.0, "head.bias": 1.0}
    grads = jax.tree.map(lambda p: np.full(p.shape, 100.0, np.float32), LAMB_PARAMS)
    options = {"weight_decay": 0.3, "layer_scales": scales}
    tx = optimizer.lamb(0.1, **options)
    updates, _ = tx.update(grads, tx.init(LAMB_PARAMS), LAMB_PARAMS)
    for name, scale in scales.items():
        length = scale * 0.1 * np.linalg.norm(LAMB_PARAMS[name])
        np.testing.assert_allclose(np.linalg.norm(updates[name]), length, rtol=1e-5)
    # With b1 = b2 = 0 and a huge eps, the direction is the clipped gradient over eps: tiny beside the decay.
    alone = {"b1": 0.0, "b2": 0.0, "eps": 1e6, "clip_norm": 1.0}
    clipped, free = optimizer.lamb(1.0, **alone), optimizer.lamb(1.0, **{**alone, "clip_norm": None})
    chained = optax.chain(optax.clip_by_global_norm(1.0), free)
    _follow_both(clipped, chained, LAMB_PARAMS, steps=1)


def test_lamb_freezes_parameters_and_takes_rates_of_its_own():
    rates = {"head.w": lambda step: 0.5}
    tx = optimizer.lamb(0.1, frozen=("blocks.*",), schedules=rates)
    grads = jax.tree.map(np.ones_like, LAMB_PARAMS)
    updates, _ = jax.jit(tx.update)(grads, tx.init(LAMB_PARAMS), LAMB_PARAMS)
    assert not np.any(updates["blocks.0.w"])
    lengths = {
        name: np.linalg.norm(updates[name]) / np.linalg.norm(LAMB_PARAMS[name]) for name in ("head.w", "head.bias")
    }
    np.testing.assert_allclose(list(lengths.values()), [0.5, 0.1], rtol=1e-5)


def test_lars_takes_layer_scales_and_clipping_like_the_others():
    scales = {"blocks.0.w": 0.25, "head.w": 1.0, "head.bias": 1.0}
    scaled = optimizer.lars(0.1, layer_scales=scales)
    grads = jax.tree.map(np.ones_like, LAMB_PARAMS)
    plain = optimizer.lars(0.1)
    updates, _ = scaled.update(grads, scaled.init(LAMB_PARAMS), LAMB_PARAMS)
    expected, _ = plain.update(grads, plain.init(LAMB_PARAMS), LAMB_PARAMS)
    chex.assert_trees_all_close(updates, {name: scale * expected[name] for name, scale in scales.items()}, rtol=1e-6)
