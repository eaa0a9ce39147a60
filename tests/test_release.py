"""What is released: a source archive and a wheel with all that a user needs, and nothing else."""

import email
import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import jaxprune

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def run(*command, cwd, **env):
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The source archive, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    # Without isolation: what builds is installed, and nothing is downloaded.
    run("-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (archive,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return archive, wheel


def test_both_are_of_this_version_and_fit_to_be_uploaded(archives):
    assert all(path.name.startswith(f"jaxprune-{jaxprune.__version__}") for path in archives)
    if importlib.util.find_spec("twine") is not None:
        run("-m", "twine", "check", "--strict", *archives, cwd=archives[0].parent)


def test_the_wheel_has_the_package_its_tables_and_configs_and_no_tests(archives):
    with zipfile.ZipFile(archives[1]) as wheel:
        names = wheel.namelist()
        (about,) = (name for name in names if name.endswith("METADATA"))
        metadata = email.message_from_bytes(wheel.read(about))
    assert {name.split("/")[0] for name in names} == {"jaxprune", about.split("/")[0]}
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "jaxprune").rglob("*") if path.is_file()}
    package = {name for name in package if "__pycache__" not in name}
    assert package <= set(names) and "jaxprune/py.typed" in names
    configs = {f"jaxprune/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "configs").rglob("*.py")}
    assert configs and configs <= set(names)
    assert not [name for name in names if "/tests/" in name or name.split("/")[-1].startswith(("test_", "conftest"))]
    assert metadata["Version"] == jaxprune.__version__ and metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0" and metadata.get_payload()


def test_the_source_archive_has_tests_and_documentation(archives):
    with tarfile.open(archives[0]) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "SECURITY.md", "docs/index.md"} <= names
    assert "tests/test_release.py" in names and not [name for name in names if name.startswith((".git/", "runs/"))]


def test_the_wheel_runs_where_nothing_of_the_repository_is(archives, tmp_path):
    place = tmp_path / "installed"
    with zipfile.ZipFile(archives[1]) as wheel:
        wheel.extractall(place)
    where = run("-c", "import jaxprune; print(jaxprune.__file__)", cwd=tmp_path, PYTHONPATH=str(place))
    assert Path(where.strip()).is_relative_to(place)
    helped = run(
        "-m", "jaxprune.main", "--config=configs/quickstart.py:smoke", "--help", cwd=tmp_path, PYTHONPATH=str(place)
    )
    assert "workdir" in helped
