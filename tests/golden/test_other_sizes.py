"""Golden tests take their sizes from the files: with files of other sizes in their place, they pass as well."""

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import other_sizes
import pytest
from support import GOLDEN

TESTS = Path(__file__).parent.parent
# Every module that makes files: one with FAMILIES, {name of its files: ...}.
MODULES = [
    module
    for entry in pkgutil.iter_modules(other_sizes.__path__)
    if hasattr(module := importlib.import_module(f"other_sizes.{entry.name}"), "FAMILIES")
]
SETS = {module.__name__.rpartition(".")[2]: module.FAMILIES for module in MODULES}


def folder_of(families, folder):
    """The golden files with those of some families replaced."""
    for path in GOLDEN.glob("*/*"):
        if path.suffix in (".npz", ".json"):
            link = folder / path.relative_to(GOLDEN)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(path)
    for family in families:
        for pattern in family.replaced:
            leaving = list(folder.glob(f"{pattern}.npz"))
            assert leaving, pattern
            for path in leaving:
                path.unlink()
        for name, arrays in family.build().items():
            np.savez(folder / f"{name}.npz", **{key: np.asarray(value) for key, value in arrays.items()})


@pytest.mark.parametrize("kind", SETS)
def test_every_family_names_tests_that_exist(kind):
    for family in SETS[kind].values():
        for test in family.tests:
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}(" in (TESTS / file).read_text() or not name, test


@pytest.mark.slow
@pytest.mark.parametrize("kind", SETS)
def test_files_of_other_sizes_pass_too(kind, tmp_path):
    families = SETS[kind].values()
    folder_of(families, tmp_path)
    tests = [str(TESTS / test) for family in families for test in family.tests]
    options = ["-q", "-n0", "-m", "not eight_devices", "-p", "no:cacheprovider", "--tb=short"]
    env = {**os.environ, "JAXPRUNE_TEST_GOLDEN": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, cwd=TESTS.parent, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
