"""Runs a part of the quick tests on the newest Python of this machine, and with the oldest declared versions on 3.11.

python .ci/versions.py WORK

Prints one line for each. What this machine cannot run (there is no such Python, or nothing can be installed) is said
and skipped; only tests that fail make the exit status 1. `scripts/check_versions.py` runs all quick tests on every
Python.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# What a new version of Python, JAX, Flax, Orbax or NumPy breaks first: a few minutes on two cores.
TESTS = ("checkpoints", "nn", "ops", "train", "weights", "reduction/test_tome.py", "reduction/test_topk.py")
NEWEST = ("3.14", "3.13", "3.12")
OLDEST = "3.11"
_PATIENCE = 240  # seconds for an installation
_LONGEST = 360  # seconds of tests


def python(version: str) -> str | None:
    """Returns the path of a Python that runs, on the PATH or of pyenv; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python3")))]
    for path in filter(None, found):
        asked = subprocess.run([path, "-c", "import sys; print(*sys.version_info[:2], sep='.')"], **_QUIET)
        if asked.returncode == 0 and asked.stdout.strip() == version:
            return path
    return None


def oldest_versions() -> Iterator[str]:
    """Yields constraints of pip for the lower bounds of the dependencies, each with its fixes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in (*project["dependencies"], *project["optional-dependencies"]["test"]):
        name, bound = re.match(r"([\w.-]+)(?:\[[^]]*\])?>=([\w.]+)", requirement).groups()
        yield f"{name}=={bound}.*"  # not every bound is a release itself


def run(name: str, version: str, work: Path, constraints: tuple[str, ...] = ()) -> str:
    """Returns what a part of the tests says in an environment of its own, or why it was skipped."""
    path = python(version)
    if path is None:
        return f"skipped: there is no Python {version} on the PATH or in pyenv"
    place = work / name
    if subprocess.run([path, "-m", "venv", place], **_QUIET).returncode:
        return f"skipped: {path} makes no virtual environment"
    listed = work / f"{name}.constraints"
    listed.write_text("".join(f"{line}\n" for line in constraints))
    quiet = ("--quiet", "--disable-pip-version-check")
    install = [place / "bin" / "pip", "install", *quiet, "-c", listed, "-e", ".[test]"]
    try:
        installed = subprocess.run(install, cwd=ROOT, timeout=_PATIENCE, **_QUIET)
    except subprocess.TimeoutExpired:
        return f"skipped: Python {version} installed nothing within {_PATIENCE // 60} minutes"
    if installed.returncode:
        errors = [line for line in installed.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        return f"skipped: Python {version} can install nothing ({errors[0][:160]})"
    command = [place / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider", *(f"tests/{part}" for part in TESTS)]
    try:
        tested = subprocess.run(command, cwd=ROOT, timeout=_LONGEST, **_QUIET)
    except subprocess.TimeoutExpired:
        return f"skipped: Python {version} had not ended the tests after {_LONGEST // 60} minutes"
    lines = [line for line in tested.stdout.splitlines() if re.search(r"\d (passed|failed|error)", line)]
    if tested.returncode:
        print(tested.stdout[-20000:])
    ending = lines[-1].strip("= ") if lines else "no summary"
    return f"{'failed' if tested.returncode else 'passed'}: Python {version}, {ending}"


_QUIET = {"capture_output": True, "text": True, "env": {**os.environ, "PYTHONPATH": "", "VIRTUAL_ENV": ""}}


def main(work: Path) -> int:
    """Runs both; see the module."""
    running = f"{sys.version_info[0]}.{sys.version_info[1]}"
    newest = next((version for version in NEWEST if python(version)), None)
    if newest is None or newest == running:
        outcomes = {"newest Python": f"skipped: this machine has none newer than {running}, which ran everything"}
    else:
        outcomes = {"newest Python": run("newest", newest, work)}
    outcomes["oldest versions"] = run("oldest", OLDEST, work, tuple(oldest_versions()))
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome}")
    return int(any(outcome.startswith("failed") for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
