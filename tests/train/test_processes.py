"""Several processes that train one run, as the command line starts them."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxprune import main, processes
from jaxprune.checkpoints.store import load_params
from jaxprune.errors import UserError

ROOT = Path(__file__).parent.parent.parent
SMOKE = "configs/mim/imagenet.py:smoke"


def start(workdir, *flags, devices=1, config=SMOKE) -> subprocess.Popen:
    flags_of_xla = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags_of_xla, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jaxprune.main", f"--config={config}", f"--workdir={workdir}", *flags]
    return subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*started: subprocess.Popen) -> None:
    for process in started:
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, out


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def start_two(workdir, *flags, **options) -> list[subprocess.Popen]:
    together = [*flags, f"--coordinator=localhost:{free_port()}", "--num_processes=2"]
    return [start(workdir, *together, f"--process_id={i}", **options) for i in range(2)]


def rows(workdir):
    return [json.loads(line) for line in (Path(workdir) / "metrics.jsonl").read_text().splitlines()]


def alone_and_together(one, two, *flags, **options):
    """Runs a config in one process and in two, and compares their metrics."""
    finish(start(one, *flags, **options))
    finish(*start_two(two, *flags, **options))
    assert len(rows(one)) == len(rows(two)) > 2
    for mine, theirs in zip(rows(one), rows(two), strict=True):
        assert mine.keys() == theirs.keys()
        np.testing.assert_allclose(
            [mine[k] for k in sorted(mine) if k != "split"],
            [theirs[k] for k in sorted(mine) if k != "split"],
            rtol=1e-4,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", ["configs/reduction/small.py:smoke,method=topk", "configs/mim/linear_probe.py:smoke"]
)
def test_two_processes_evaluate_classifiers_as_one_does(config, tmp_path):
    flags = []
    if "probe" in config:
        finish(start(tmp_path / "weights", config="configs/reduction/small.py:smoke"))
        flags = [f"--config.run={tmp_path / 'weights'}"]
    alone_and_together(tmp_path / "one", tmp_path / "two", *flags, config=config)


@pytest.mark.slow
def test_two_processes_train_what_one_does_and_another_number_of_devices_resumes(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    alone_and_together(one, two)
    ours, joint = load_params(one), load_params(two)
    for name in ours:
        np.testing.assert_allclose(ours[name], joint[name], atol=2e-5, err_msg=name)
    assert (two / "report.html").is_file() and (two / "complete.json").is_file()

    # Cut back to the middle, eight devices finish what one process began.
    (one / "complete.json").unlink()
    newest = max((one / "checkpoints").iterdir(), key=lambda path: int(path.name))
    for path in sorted(newest.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    newest.rmdir()
    finish(start(one, devices=8))
    resumed = load_params(one)
    for name in resumed:
        np.testing.assert_allclose(resumed[name], joint[name], atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_where_one_of_two_processes_is_killed_the_other_ends_and_both_resume(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    flags = "--config.epochs=6.0", "--config.checkpoint_every=4", "--config.log_every=2"
    finish(*start_two(whole, *flags))
    for victim in (1, 0):
        started = start_two(killed, *flags)
        saved = len(steps_of(killed))
        while len(steps_of(killed)) == saved:
            assert started[victim].poll() is None, started[victim].communicate()
            time.sleep(0.05)
        started[victim].kill()
        began = time.monotonic()
        out, _ = started[1 - victim].communicate(timeout=120)
        assert time.monotonic() - began < 60 and started[1 - victim].returncode
        # Where the first process has gone, JAX itself may abort before the link to it is used.
        if victim == 1:
            assert "error: Another process of the run has ended" in out and "Traceback" not in out
        started[victim].communicate()
    finish(*start_two(killed, *flags))
    assert rows(killed) == rows(whole)
    ours, theirs = load_params(killed), load_params(whole)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def steps_of(workdir):
    return list((Path(workdir) / "checkpoints").glob("[0-9]"))


@pytest.mark.slow
def test_a_coordinator_that_never_comes_is_one_line():
    code = f"from jaxprune import processes; processes.join('localhost:{free_port()}', 2, 1, patience=2)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stderr.startswith("error: The other processes of the run did not come at localhost:")
    assert done.stderr.count("\n") == 1


def test_flags_that_belong_together_are_asked_for_together():
    with pytest.raises(UserError, match="process_id is missing"):
        processes.join("localhost:1", 2)


def test_only_training_is_shared():
    with pytest.raises(UserError, match="quickstart runs in one process"):
        main._join("quickstart")


def test_one_process_waits_for_nobody():
    processes.wait("nobody")
    assert processes.leads() and processes.most_urgent(2) == 2
