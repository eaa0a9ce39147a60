"""Runs the tests marked `eight_devices` in a process that has eight virtual CPU devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_everything_that_needs_eight_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
    files = sorted(path for path in ROOT.glob("tests/**/test_*.py") if "mark.eight_devices" in path.read_text())
    # This mark comes after the one in pyproject.toml, and wins.
    marked = ["-m", "eight_devices", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *marked, *files],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.fail(f"with eight devices:\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}", pytrace=False)
