import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toy_run import Batches, parameters, toy_fit

from jaxprune import parallel
from jaxprune.checkpoints.store import load_params
from jaxprune.errors import UserError
from jaxprune.mim.parts.encoder_copy import EncoderCopy
from jaxprune.nn.batch_norm import MOMENTUM, RunningStats
from jaxprune.ops.platform import takes_gradient
from jaxprune.train import optimizer, state
from jaxprune.train.step import make_train_step


def quiet_loss(params, batch, key):
    """The toy's loss, without noise: a mean over the rows."""
    error = batch["x"] @ params["linear.kernel"] + params["linear.bias"] - batch["y"]
    return jnp.mean(error**2) + batch.get("fixed", {}).get("offset", 0.0), {"bias": jnp.mean(error)}


def run(steps=3, loss=quiet_loss, ema=False, fixed=None, keepers=(), **options):
    mesh = parallel.make_mesh({"data": 1}, jax.devices()[:1])
    tx = optax.adam(0.1)
    now, batches = state.create(parameters(), tx, mesh, ema=ema, keepers=keepers), Batches()
    step = make_train_step(loss, tx, keepers=keepers, **options)
    seen = []
    for _ in range(steps):
        batch = next(batches) | ({"fixed": fixed} if fixed else {})
        now, metrics = step(now, batch, jax.random.key(0))
        seen.append((jax.device_get(now.params), jax.device_get(metrics)))
    return now, seen


def test_a_batch_in_parts_is_the_same_step():
    whole, one = run()
    parts, many = run(accumulate=4, fixed={"offset": jnp.float32(2.0)})
    chex.assert_trees_all_close(parts.params, whole.params, rtol=1e-5)
    np.testing.assert_allclose(many[-1][1]["loss"], one[-1][1]["loss"] + 2.0, rtol=1e-5)
    np.testing.assert_allclose(many[-1][1]["bias"], one[-1][1]["bias"], rtol=1e-5)


def test_a_column_without_numbers_is_divided_too():
    """Such as the masks of a detector that has none."""
    loss = lambda params, batch, key: (params["w"] * batch["x"].sum() + batch["masks"].sum(), {})
    step = make_train_step(loss, optax.sgd(0.1), accumulate=2)
    begun = state.TrainState(jnp.int32(0), {"w": jnp.ones(())}, optax.sgd(0.1).init({"w": jnp.ones(())}), {})
    _, metrics = step(begun, {"x": jnp.ones((4, 3)), "masks": jnp.zeros((4, 0))}, jax.random.key(0))
    assert float(metrics["loss"]) == 6.0


def test_every_part_draws_its_own_numbers():
    _, seen = run(1, lambda p, b, k: (jnp.mean(p["linear.bias"] * 0), {"u": jax.random.uniform(k)}), accumulate=4)
    key = jax.random.fold_in(jax.random.key(0), 0)
    draws = [jax.random.uniform(jax.random.fold_in(key, part)) for part in range(4)]
    np.testing.assert_allclose(seen[0][1]["u"], np.mean(draws), rtol=1e-6)


def test_averaged_parameters_follow_slowly():
    now, seen = run(3, ema=True, ema_decay=0.75)
    expected = parameters()
    for params, _ in seen:
        expected = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, expected, params)
    chex.assert_trees_all_close(now.extra["ema"], expected, rtol=1e-6)


def test_averages_include_running_statistics_but_not_what_else_is_kept():
    def loss(params, batch, key):
        value, metrics = quiet_loss(params, {name: batch[name] for name in ("x", "y")}, key)
        return value, {**metrics, "running": {"mean": batch["kept"]["running"]["mean"] + 1.0}}

    copy = EncoderCopy(first=1, period=1, prefix="linear.bias")
    now, _ = run(3, loss, keepers=(copy, RunningStats({"mean": jnp.float32(2.0)})), ema=True, ema_decay=0.75)
    assert set(now.extra["ema"]) == {*parameters(), "mean"}
    average = running = 2.0
    for _ in range(3):
        running += MOMENTUM
        average = 0.75 * average + 0.25 * running
    np.testing.assert_allclose(now.extra["running"]["mean"], running, rtol=1e-6)
    np.testing.assert_allclose(now.extra["ema"]["mean"], average, rtol=1e-6)


def test_a_run_keeps_its_averages(tmp_path):
    result = toy_fit(tmp_path, ema_decay=0.9, accumulate=2)
    saved = load_params(tmp_path, ema=True)
    np.testing.assert_array_equal(saved["linear.kernel"], result.state.extra["ema"]["linear.kernel"])
    assert np.abs(saved["linear.kernel"] - load_params(tmp_path)["linear.kernel"]).max() > 0


def test_some_parameters_have_a_rate_of_their_own():
    slow = optimizer.frozen_until(lambda step: 0.01, 2)
    tx = optimizer.adamw(lambda step: 0.1, schedules={"linear.bias": slow})
    params = parameters()
    gradient = jax.tree.map(jnp.ones_like, params)
    now = tx.init(params)
    for step in range(3):
        updates, now = tx.update(gradient, now, params)
        np.testing.assert_allclose(updates["linear.kernel"], -0.1, rtol=1e-4)
        np.testing.assert_allclose(updates["linear.bias"], -0.01 if step >= 2 else 0.0, rtol=1e-4)


def test_a_copy_of_parameters_is_refreshed_now_and_then():
    def loss(params, batch, key):
        value, metrics = quiet_loss(params, {name: batch[name] for name in ("x", "y")}, key)
        (kept,) = batch["kept"]["snapshot"].values()
        return value, {**metrics, "kept": jnp.sum(kept), "offset": batch["fixed"]["offset"]}

    copy = EncoderCopy(first=1, period=2, prefix="linear.bias")
    now, seen = run(4, loss, keepers=(copy,), fixed={"offset": jnp.float32(2.0)}, accumulate=2)
    biases = [parameters()["linear.bias"], *(params["linear.bias"] for params, _ in seen)]
    # After steps 1 and 3; a step sees what was kept before it.
    np.testing.assert_allclose([m["kept"] for _, m in seen], [np.sum(biases[i]) for i in (0, 1, 1, 3)], rtol=1e-5)
    np.testing.assert_array_equal(now.extra["snapshot"]["linear.bias"], biases[3])
    assert seen[0][1]["offset"] == 2.0


def test_running_statistics_follow_those_that_the_loss_reports():
    def loss(params, batch, key):
        value, metrics = quiet_loss(params, {name: batch[name] for name in ("x", "y")}, key)
        moved = batch["kept"]["running"]["mean"] + 1.0
        return value, {**metrics, "running": {"mean": moved}}

    now, seen = run(3, loss, keepers=(RunningStats({"mean": jnp.float32(2.0)}),))
    np.testing.assert_allclose(now.extra["running"]["mean"], 2 + 3 * MOMENTUM, rtol=1e-6)
    assert "running" not in seen[0][1]


def test_a_batch_that_is_not_divided_into_micro_batches_is_refused():
    loss = lambda params, batch, key: ((params["w"] * batch["image"].sum()), {})
    step = make_train_step(loss, optax.sgd(0.1), accumulate=2)
    begun = state.TrainState(jnp.int32(0), {"w": jnp.ones(())}, optax.sgd(0.1).init({"w": jnp.ones(())}), {})
    with pytest.raises(UserError, match="A batch of 5 rows is not divided by accumulate=2"):
        step(begun, {"image": jnp.ones((5, 3))}, jax.random.key(0))


def test_the_loss_knows_that_its_gradient_is_taken():
    seen = []
    run(steps=1, loss=lambda *of_batch: (seen.append(takes_gradient()), quiet_loss(*of_batch))[1])
    assert seen and all(seen) and not takes_gradient()
