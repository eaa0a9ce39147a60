"""What `.ci/versions.py` says where a Python or its packages are missing, and which versions it asks for."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / ".ci" / "versions.py"
if not SCRIPT.is_file():
    pytest.skip("what is released has no .ci", allow_module_level=True)


@pytest.fixture
def versions():
    spec = importlib.util.spec_from_file_location("ci_versions", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_parts_that_it_runs_are_there(versions):
    assert all((SCRIPT.parent.parent / "tests" / part).exists() for part in versions.TESTS)


def test_every_lower_bound_is_a_constraint(versions):
    bounds = dict(line.split("==") for line in versions.oldest_versions())
    assert bounds["jax"] == "0.7.2.*" and {"flax", "numpy", "orbax-checkpoint", "pytest"} <= bounds.keys()


def test_a_python_is_found_by_what_it_says_it_is(versions, tmp_path, monkeypatch):
    running = "{}.{}".format(*sys.version_info[:2])
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    place = tmp_path / "versions" / f"{running}.0" / "bin"
    place.mkdir(parents=True)
    (place / "python3").symlink_to(sys.executable)
    monkeypatch.setattr(versions.shutil, "which", lambda name: None)
    assert versions.python(running) == str(place / "python3")
    (tmp_path / "versions" / "3.99.0" / "bin").mkdir(parents=True)
    (tmp_path / "versions" / "3.99.0" / "bin" / "python3").symlink_to(sys.executable)
    assert versions.python("3.99") is None


def test_what_is_missing_is_said_and_skipped(versions, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(versions, "python", lambda version: None)
    assert versions.main(tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "newest Python: skipped: this machine has none newer than {}.{}, which ran everything".format(
            *sys.version_info[:2]
        ),
        "oldest versions: skipped: there is no Python 3.11 on the PATH or in pyenv",
    ]


@pytest.mark.parametrize(
    ("fails", "status", "outcome"),
    [
        ("install", 0, "skipped: Python 3.14 can install nothing (ERROR: no route)"),
        ("slowly", 0, "skipped: Python 3.14 installed nothing within 4 minutes"),
        ("endless", 0, "skipped: Python 3.14 had not ended the tests after 6 minutes"),
        ("pytest", 1, "failed: Python 3.14, 1 failed, 2 passed in 3.0s"),
        ("", 0, "passed: Python 3.14, 1 failed, 2 passed in 3.0s"),
    ],
)
def test_only_tests_that_fail_make_it_fail(fails, status, outcome, versions, tmp_path, monkeypatch, capsys):
    def pretend(command, **_):
        if fails == "slowly" and "install" in command:
            raise subprocess.TimeoutExpired(command, 240)
        if fails == "endless" and "pytest" in command:
            raise subprocess.TimeoutExpired(command, 360)
        failed = bool(fails) and fails in command
        return subprocess.CompletedProcess(command, int(failed), "= 1 failed, 2 passed in 3.0s =", "ERROR: no route")

    monkeypatch.setattr(versions, "python", lambda version: "python" if version == "3.14" else None)
    monkeypatch.setattr(versions.subprocess, "run", pretend)
    assert versions.main(tmp_path) == status
    assert f"newest Python: {outcome}" in capsys.readouterr().out
