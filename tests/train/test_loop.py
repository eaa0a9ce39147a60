import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import slow_but
from toy_run import BATCH, STEPS, Batches, evaluate_hook, loss_fn, parameters, toy_fit

from jaxprune import parallel
from jaxprune.checkpoints.store import CheckpointStore, load_params
from jaxprune.errors import UserError
from jaxprune.train import interrupt, loop, wall_clock
from jaxprune.train.loop import Hook
from jaxprune.train.state import abstract, create
from jaxprune.train.step import make_train_step
from jaxprune.train.writer import read_metrics


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed")
    return workdir, toy_fit(workdir)


def same_state(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def metrics_bytes(workdir) -> bytes:
    return (workdir / "metrics.jsonl").read_bytes()


def at_step(step, action) -> Hook:
    return Hook(1, lambda now, state, writer: action() if now == step else None)


def test_a_run_learns_logs_and_saves(undisturbed):
    workdir, result = undisturbed
    rows = read_metrics(workdir)
    train = [row for row in rows if row["split"] == "train"]
    assert (result.step, result.stopped) == (STEPS, None)
    assert [row["step"] for row in train] == list(range(2, STEPS + 1, 2))
    assert set(train[0]) == {"step", "split", "loss", "grad_norm", "worst", "learning_rate"}
    assert train[-1]["loss"] < train[0]["loss"] / 3
    assert [row["step"] for row in rows if row["split"] == "eval"] == [6, 12, 18, 24]
    assert sorted(int(path.name) for path in (workdir / "checkpoints").iterdir()) == [15, 20, 24]
    assert json.loads((workdir / "timings.json").read_text())["first_step_seconds"]["count"] == 1
    np.testing.assert_array_equal(load_params(workdir)["linear.kernel"], result.state.params["linear.kernel"])


def test_a_finished_run_has_nothing_left_to_do(undisturbed):
    workdir, result = undisturbed
    before = metrics_bytes(workdir)
    again = toy_fit(workdir, batches=Batches(bad=0))
    assert again.step == STEPS and again.stopped is None
    assert same_state(again.state, result.state) and metrics_bytes(workdir) == before


@pytest.mark.slow
def test_killed_three_times_once_inside_a_save_the_run_ends_with_the_same_bytes(undisturbed, tmp_path):
    for kill in ("step:4", "orbax:10", "commit:20"):
        done = run_toy(tmp_path, kill)
        assert done.returncode == -signal.SIGKILL, done.stderr
    # What the last kill leaves: a save without its commit, and metrics newer than the last good checkpoint.
    assert (tmp_path / "checkpoints" / "20.writing").is_dir()
    assert read_metrics(tmp_path)[-1]["step"] > 15
    done = run_toy(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "20.writing" in done.stderr
    workdir, result = undisturbed
    assert metrics_bytes(tmp_path) == metrics_bytes(workdir)
    with CheckpointStore(tmp_path / "checkpoints") as store:
        step, state, _ = store.restore_latest(result.state)
    assert step == STEPS and same_state(state, result.state)


def test_the_wall_clock_is_told_by_what_took_it_over_all_sessions(tmp_path):
    class Slow(Batches):
        def __next__(self):
            time.sleep(0.02)
            return super().__next__()

    def stop(step, state, writer):
        time.sleep(0.05)
        if step == 4 and not list(tmp_path.glob("again")):
            raise KeyboardInterrupt

    options = {"total_steps": 6, "checkpoint_every": 3, "hooks": [Hook(2, stop)], "keep": 1}
    with pytest.raises(KeyboardInterrupt):
        toy_fit(tmp_path, batches=Slow(), **options)
    (tmp_path / "again").touch()
    later = time.time() + 50  # as if it had gone on for long after its save
    os.utime(tmp_path / "metrics.jsonl", (later, later))
    began = time.monotonic()
    spent = toy_fit(tmp_path, batches=Slow(), **options).spent
    seconds = time.monotonic() - began
    assert tuple(spent) == wall_clock.KINDS and 49 < spent["lost"] < 110
    assert spent["data"] >= 6 * 0.02 and spent["evaluation"] >= 3 * 0.05 and spent["compile"] > 0 and spent["save"] > 0
    assert sum(spent.values()) - spent["lost"] > seconds - 0.1 and spent["steps"] > 0
    assert wall_clock.goodput(spent) < 0.5
    # Nothing more is lost by a session that ended well.
    assert toy_fit(tmp_path, **options).spent["lost"] == pytest.approx(spent["lost"])


@pytest.mark.slow
def test_a_run_resumes_at_every_step_with_the_same_bytes(tmp_path):
    options = {"total_steps": 8, "checkpoint_every": 1, "keep": 8}
    expected = toy_fit(tmp_path / "whole", **options)
    for step in range(1, 8):
        workdir = tmp_path / "run"
        shutil.rmtree(workdir, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", workdir)
        for later in range(step + 1, 9):
            shutil.rmtree(workdir / "checkpoints" / str(later))
        batches = Batches()
        again = toy_fit(workdir, batches=batches, **options)
        assert same_state(again.state, expected.state) and batches.position == 8, step
        assert metrics_bytes(workdir) == metrics_bytes(tmp_path / "whole"), step


def run_toy(workdir, *kill) -> subprocess.CompletedProcess:
    command = [sys.executable, Path(__file__).parent / "toy_run.py", workdir, *kill]
    # The strict session's precision, so that the numbers can be compared with this process's.
    env = {**os.environ, "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("number", slow_but([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]))
def test_a_signal_finishes_the_step_saves_and_a_second_call_goes_on(undisturbed, tmp_path, number, caplog):
    workdir, result = undisturbed
    before = signal.getsignal(number)
    with caplog.at_level(logging.INFO, "jaxprune"):
        stopped = toy_fit(tmp_path, hooks=[Hook(6, evaluate_hook), at_step(7, lambda: os.kill(os.getpid(), number))])
    assert signal.getsignal(number) is before
    # The signal came while step 7 was looked at: nothing more is written, step 8 ends the session.
    assert stopped.stopped == "signal" and stopped.step == 8
    assert "Run the same command again" in caplog.text
    assert (tmp_path / "checkpoints" / "8").is_dir()
    with caplog.at_level(logging.INFO, "jaxprune"):
        finished = toy_fit(tmp_path)
    assert "resuming from step 8 of 24" in caplog.text
    assert finished.stopped is None and finished.seconds > stopped.seconds
    assert same_state(finished.state, result.state) and metrics_bytes(tmp_path) == metrics_bytes(workdir)


@pytest.mark.parametrize("number", [12, STEPS])
def test_a_signal_ends_an_evaluation_which_is_done_again(undisturbed, tmp_path, number):
    """The evaluation's own line is written after the signal would have ended it."""
    workdir, result = undisturbed

    def long_evaluation(step, state, writer):
        writer.metrics(step, "eval", {"half": 0.5})
        if step == number:
            os.kill(os.getpid(), signal.SIGINT)
        interrupt.check()
        pytest.fail("not ended") if step == number else None

    stopped = toy_fit(tmp_path, hooks=[Hook(6, evaluate_hook), Hook(number, long_evaluation)])
    assert (stopped.stopped, stopped.step, stopped.signal) == ("signal", number, "SIGINT")
    assert not [row for row in read_metrics(tmp_path) if row["step"] == number and row["split"] == "eval"]
    # Interrupted once more, before it has taken a step.
    again = toy_fit(tmp_path, hooks=[Hook(6, evaluate_hook), Hook(number, long_evaluation)])
    assert (again.stopped, again.step) == ("signal", number)
    finished = toy_fit(tmp_path)
    assert finished.stopped is None
    assert same_state(finished.state, result.state) and metrics_bytes(tmp_path) == metrics_bytes(workdir)


@pytest.mark.parametrize("number", [12, STEPS])
def test_a_signal_in_a_step_leaves_the_evaluation_behind_it_for_later(undisturbed, tmp_path, number):
    """What sends the signal may kill in half a minute, and the step is saved behind the evaluation."""
    workdir, result = undisturbed

    class Signalling(Batches):
        def __next__(self):
            if self.position == number - 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().__next__()

    def evaluation(step, state, writer):
        interrupt.check()
        evaluate_hook(step, state, writer)

    stopped = toy_fit(tmp_path, batches=Signalling(), hooks=[Hook(6, evaluation)])
    assert (stopped.stopped, stopped.step) == ("signal", number)
    assert max(row["step"] for row in read_metrics(tmp_path) if row["split"] == "eval") == number - 6
    finished = toy_fit(tmp_path, hooks=[Hook(6, evaluation)])
    assert finished.stopped is None
    assert same_state(finished.state, result.state) and metrics_bytes(tmp_path) == metrics_bytes(workdir)


@pytest.mark.slow
def test_compiling_does_not_count_as_work(tmp_path, monkeypatch):
    def slow(loss_fn, *arguments, **options):
        step = make_train_step(loss_fn, *arguments, **options)
        calls = []

        def run(*values):
            if not calls:
                calls.append(time.sleep(1.0))
            return step(*values)

        return run

    monkeypatch.setattr(loop, "make_train_step", slow)
    assert toy_fit(tmp_path, max_seconds=0.9, total_steps=2, hooks=[]).stopped is None


def test_a_second_interrupt_does_not_wait(tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        toy_fit(tmp_path, hooks=[at_step(3, twice)])


def test_a_loss_that_is_not_finite_stops_with_step_checkpoint_and_remedy(tmp_path):
    with pytest.raises(UserError) as error:
        toy_fit(tmp_path, batches=Batches(bad=12), checkpoint_every=4)
    message = str(error.value)
    assert "diverged at step 13: loss is inf" in message
    assert f"step 12: {tmp_path / 'checkpoints' / '12'}" in message and "learning rate" in message
    assert max(row["step"] for row in read_metrics(tmp_path)) == 12
    assert all(np.isfinite(value).all() for value in load_params(tmp_path).values())


def test_a_state_that_is_not_finite_is_never_saved(tmp_path):
    def poisoned(updates, state, params):
        return jax.tree.map(lambda u: jnp.where(state == 3, jnp.nan, u), updates), state + 1

    optimizer = optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), poisoned)
    with pytest.raises(UserError, match=r"diverged at step 4: a parameter.*Nothing was saved"):
        toy_fit(tmp_path, optimizer=optimizer, checkpoint_every=4, log_every=100, hooks=[])
    assert not (tmp_path / "checkpoints").exists()


def test_the_time_limit_counts_all_sessions_and_ends_with_an_evaluation(tmp_path):
    first = toy_fit(tmp_path, max_seconds=0.0001)
    assert first.stopped == "time" and first.step == 1
    assert [row["split"] for row in read_metrics(tmp_path)] == ["train", "eval"]
    assert (tmp_path / "checkpoints" / "1").is_dir()
    again = toy_fit(tmp_path, max_seconds=0.0001)
    assert again.stopped == "time" and again.step == 1
    longer = toy_fit(tmp_path, max_seconds=again.seconds + 60)
    assert longer.stopped is None and longer.step == STEPS


def test_a_run_interrupted_shortly_before_its_time_is_up_still_ends_with_an_evaluation(tmp_path):
    hook = at_step(7, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert toy_fit(tmp_path, hooks=[Hook(100, evaluate_hook), hook]).stopped == "signal"
    ended = toy_fit(tmp_path, hooks=[Hook(100, evaluate_hook)], max_seconds=0.0001)
    assert ended.stopped == "time" and ended.step == 9
    assert read_metrics(tmp_path)[-1]["split"] == "eval"


def test_data_that_ends_is_named(tmp_path):
    class Short(Batches):
        def __next__(self):
            if self.position == 3:
                raise StopIteration
            return super().__next__()

    with pytest.raises(UserError, match="ended after step 3"):
        toy_fit(tmp_path, batches=Short())


def test_another_model_in_the_same_directory_is_refused(undisturbed):
    workdir, _ = undisturbed
    with pytest.raises(UserError, match=r"params/linear\.kernel"):
        toy_fit(workdir, params={**parameters(), "linear.kernel": np.zeros((5,), np.float32)})


def test_the_parameters_given_are_left_as_they_are(tmp_path):
    params = jax.device_put(parameters())
    toy_fit(tmp_path, params=params, total_steps=2, hooks=[])
    np.testing.assert_array_equal(params["linear.kernel"], np.zeros(4))


def test_a_step_draws_its_randomness_from_its_number():
    optimizer, mesh = optax.sgd(0.0), parallel.make_mesh()
    step = make_train_step(loss_fn, optimizer)
    key, batch = jax.random.key(3), parallel.place_batch(mesh, next(Batches()))
    state, first = step(create(parameters(), optimizer, mesh), batch, key)
    _, second = step(state, batch, key)
    _, again = step(create(parameters(), optimizer, mesh), batch, key)
    assert float(first["loss"]) == float(again["loss"]) != float(second["loss"])


def losses(workdir) -> list[float]:
    return [row["loss"] for row in read_metrics(workdir) if row["split"] == "train"]


@pytest.mark.eight_devices
def test_eight_devices_train_like_one_and_take_over_from_one(tmp_path):
    one, eight = parallel.make_mesh(devices=jax.devices()[:1]), parallel.make_mesh()
    toy_fit(tmp_path / "one", mesh=one)
    toy_fit(tmp_path / "eight", mesh=eight)
    np.testing.assert_allclose(losses(tmp_path / "eight"), losses(tmp_path / "one"), rtol=0, atol=1e-5)

    hook = at_step(9, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert toy_fit(tmp_path / "both", mesh=one, hooks=[hook]).stopped == "signal"
    result = toy_fit(tmp_path / "both", mesh=eight)
    assert len(result.state.params["linear.kernel"].sharding.device_set) == 8
    np.testing.assert_allclose(losses(tmp_path / "both"), losses(tmp_path / "one"), rtol=0, atol=1e-5)


@pytest.mark.eight_devices
def test_an_optimizers_moments_live_where_their_parameter_lives_and_restore_anywhere(tmp_path):
    mesh, optimizer = parallel.make_mesh({"fsdp": -1}), optax.adam(0.1)
    params = {"fc.kernel": np.zeros((64, 128), np.float32), "fc.bias": np.zeros((128,), np.float32)}
    state = create(params, optimizer, mesh)
    for leaves in (state.params, state.opt_state[0].mu, state.opt_state[0].nu):
        assert {shard.data.shape for shard in leaves["fc.kernel"].addressable_shards} == {(64, 16)}
        assert leaves["fc.bias"].is_fully_replicated
    described = jax.tree.map(lambda x: x.sharding, abstract(params, optimizer, mesh))
    assert jax.tree.leaves(described) == [leaf.sharding for leaf in jax.tree.leaves(state)]
    step = make_train_step(quadratic_loss, optimizer, described)
    after, _ = step(state, parallel.place_batch(mesh, {"x": np.ones((BATCH, 64), np.float32)}), jax.random.key(0))
    assert [leaf.sharding for leaf in jax.tree.leaves(after)] == jax.tree.leaves(described)

    with CheckpointStore(tmp_path) as store:
        store.save(1, after, {})
        one = parallel.make_mesh(devices=jax.devices()[:1])
        _, restored, _ = store.restore_latest(abstract(params, optimizer, one))
    assert restored.params["fc.kernel"].sharding.device_set == set(jax.devices()[:1])
    assert same_state(restored, after)


def quadratic_loss(params, batch, key):
    return jnp.mean((batch["x"] @ params["fc.kernel"] + params["fc.bias"][None, :] - 1) ** 2), {}


def test_metrics_that_changed_between_sessions_are_noticed(undisturbed, tmp_path, caplog):
    toy_fit(tmp_path, hooks=[Hook(6, evaluate_hook), at_step(7, lambda: os.kill(os.getpid(), signal.SIGTERM))])
    path = tmp_path / "metrics.jsonl"
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first.replace(b'"step": 2', b'"step": 1'), *rest]))
    toy_fit(tmp_path)
    assert "metrics.jsonl was changed or cut since it was written" in caplog.text
    assert metrics_bytes(tmp_path) != metrics_bytes(undisturbed[0])


@pytest.mark.parametrize("number", slow_but([signal.SIGINT], [signal.SIGINT, signal.SIGTERM]))
def test_a_signal_after_the_last_step_is_not_lost(undisturbed, tmp_path, number):
    """It comes too late to stop the training, and stops what comes next."""
    received = []
    before = signal.signal(number, lambda *_: received.append(number))
    try:
        result = toy_fit(tmp_path, hooks=[Hook(6, evaluate_hook), at_step(STEPS, lambda: os.kill(os.getpid(), number))])
        for _ in range(3):  # a moment for the handler
            time.sleep(0.01)
    finally:
        signal.signal(number, before)
    assert received == [number] and result.step == STEPS
    assert metrics_bytes(tmp_path) == metrics_bytes(undisturbed[0])


def test_a_closed_terminal_saves_and_stops(undisturbed, in_a_terminal, tmp_path):
    before = signal.getsignal(signal.SIGHUP)
    stopped = toy_fit(tmp_path, hooks=[Hook(6, evaluate_hook), at_step(7, lambda: os.kill(os.getpid(), signal.SIGHUP))])
    assert (stopped.stopped, stopped.step, stopped.signal) == ("signal", 8, "SIGHUP")
    assert signal.getsignal(signal.SIGHUP) is before
    assert toy_fit(tmp_path).step == STEPS and metrics_bytes(tmp_path) == metrics_bytes(undisturbed[0])


def test_a_run_that_was_started_to_outlive_its_terminal_goes_on(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        result = toy_fit(tmp_path, hooks=[at_step(7, lambda: os.kill(os.getpid(), signal.SIGHUP))])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert result.step == STEPS and result.stopped is None
