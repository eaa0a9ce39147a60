"""A pre-training run that is killed again and again ends with the numbers of one that never was."""

import signal
import subprocess
import sys
import time

import numpy as np
import orbax.checkpoint as ocp
import pytest

COMMAND = [
    sys.executable,
    "-m",
    "jaxprune.main",
    "--config=configs/mim/imagenet.py:smoke",
    "--config.epochs=40",
    "--config.checkpoint_every=5",
    "--config.picture_every=50",
    "--config.eval_every=25",
]


def start(workdir):
    return subprocess.Popen([*COMMAND, f"--workdir={workdir}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def interrupt(process):
    """Presses Ctrl-C; returns the output and the seconds that the program took to leave."""
    pressed = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    return output.decode(), time.monotonic() - pressed


def wait_for(workdir, steps, *, saving=False):
    """Waits until `steps` lie behind the run, and if asked until it is in the middle of a save."""
    folder = workdir / "checkpoints"
    while True:
        done = [int(path.name) for path in folder.glob("*") if path.name.isdigit()] if folder.is_dir() else []
        if max(done, default=0) >= steps and (not saving or list(folder.glob("*.writing"))):
            return
        time.sleep(0.0005)


def arrays(workdir):
    """Everything that the newest checkpoint holds: parameters, optimizer state, step."""
    newest = max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name))
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(newest / "state")


def assert_equal(some, others):
    assert (some / "metrics.jsonl").read_bytes() == (others / "metrics.jsonl").read_bytes()
    ours, theirs = arrays(some), arrays(others)
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    assert start(workdir).wait() == 0
    return workdir


@pytest.mark.slow
def test_three_kills_one_of_them_inside_a_save(undisturbed, tmp_path):
    killed = tmp_path / "killed"
    for steps, saving in ((10, False), (60, True), (100, False)):
        process = start(killed)
        wait_for(killed, steps, saving=saving)
        process.send_signal(signal.SIGKILL)
        process.wait()
        half_written = list((killed / "checkpoints").glob("*.writing"))
        assert not saving or half_written, "the kill came after the save: run this test again"
    process = start(killed)
    output, _ = process.communicate()
    assert process.returncode == 0 and b"resuming from step" in output, output.decode()
    assert_equal(killed, undisturbed)


@pytest.mark.campaign
@pytest.mark.slow
def test_twenty_kills_half_of_them_inside_saves(undisturbed, tmp_path):
    killed = tmp_path / "killed"
    reached, inside = [], 0
    for kill in range(20):
        process = start(killed)
        wait_for(killed, 7 * kill, saving=kill % 2 == 1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        folder = killed / "checkpoints"
        inside += kill % 2 == 1 and any(folder.glob("*.writing"))
        reached.append(max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=0))
    print(f"{inside} kills inside a save; newest checkpoints then: {reached}")
    assert inside >= 5 and len(set(reached)) >= 10
    assert start(killed).wait() == 0
    assert_equal(killed, undisturbed)


@pytest.mark.slow
def test_sigterm_saves_and_the_run_goes_on(tmp_path):
    process = start(tmp_path / "run")
    wait_for(tmp_path / "run", 10)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    assert process.returncode == 0 and b"resumes from there" in output, output.decode()
    assert not (tmp_path / "run" / "complete.json").exists()
    assert start(tmp_path / "run").wait() == 0
    assert (tmp_path / "run" / "complete.json").exists()


@pytest.mark.slow
def test_ctrl_c_ends_training_after_a_step_and_a_save_with_status_130(tmp_path):
    process = start(tmp_path / "run")
    wait_for(tmp_path / "run", 10)
    output, seconds = interrupt(process)
    assert process.returncode == 130 and "resumes from there" in output, output
    assert seconds < 10, "a step and a save of the smallest network"
