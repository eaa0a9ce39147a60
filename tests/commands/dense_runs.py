"""What the tests of `segment` and `detect` share: runs that are killed, and runs on eight devices."""

import json
import signal
import subprocess
import time

import jax
from test_killed import assert_equal, wait_for

from jaxprune import parallel
from jaxprune.commands.shared import inputs


def assert_a_killed_run_ends_as_another(command, folder, **options):
    """Runs a command twice, once with a SIGKILL after ten steps; both have to end with the same arrays and metrics."""
    start = lambda name: subprocess.Popen(
        [*command, f"--workdir={folder / name}"], stdout=subprocess.DEVNULL, **options
    )
    assert start("whole").wait() == 0
    killed = start("killed")
    wait_for(folder / "killed", 10)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    time.sleep(0.1)
    assert start("killed").wait() == 0
    assert_equal(folder / "whole", folder / "killed")


def on_one_and_eight(run, folder, monkeypatch):
    """Returns the losses of the steps and the summaries of `run(workdir)` on one and on eight devices."""
    meshes = {"one": lambda config: parallel.make_mesh({"data": 1}, jax.devices()[:1]), "eight": inputs.mesh}
    losses, summaries = {}, {}
    for count, mesh in meshes.items():
        monkeypatch.setattr(inputs, "mesh", mesh)
        summaries[count] = run(folder / count)
        lines = (folder / count / "metrics.jsonl").read_text().splitlines()
        losses[count] = [row["loss"] for row in map(json.loads, lines) if row["split"] == "train"]
    return losses, summaries
