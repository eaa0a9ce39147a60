"""Runs the tests marked `eight_devices` in a process that has eight virtual CPU devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_everything_that_needs_eight_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
    files = sorted(path for path in ROOT.glob("tests/**/test_*.py") if "mark.eight_devices" in path.read_text())
    # The mark given here comes after the one in pyproject.toml, and wins.
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "eight_devices and not slow",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            *files,
        ],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.fail(f"with eight devices:\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}", pytrace=False)
