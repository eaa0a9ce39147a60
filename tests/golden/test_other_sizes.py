"""Golden tests take their sizes from the files: with files of other sizes in their place, they pass as well."""

import ast
import functools
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
# Families of dear networks are tested alone, the others of a module together.
ALONE = ("detectors", "exits", "segmenters")
PARTS = {kind: list(families.values()) for kind, families in SETS.items() if kind not in ALONE}
PARTS |= {f"{kind}: {name}": [family] for kind in ALONE for name, family in SETS[kind].items()}
# At most 20 s each; the others take 13 minutes together.
SHORT = ("choosing", "crossmae", "parts", "segmentation", "detectors: backbone", "detectors: vitdet", "exits: policies")
SHORT += ("exits: operations", "exits: stages", "segmenters: heads", "segmenters: segvit")
LONG = [pytest.param(part, marks=pytest.mark.campaign) for part in PARTS if part not in SHORT]


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


@functools.cache
def readers(path):
    """The names at the top of a module that lead to a golden file: by what they use, are given or decorated with."""
    used, reading = {}, {"golden", "golden_names", "GOLDEN"}
    for statement in ast.parse(path.read_text()).body:
        nodes = list(ast.walk(statement))
        if isinstance(statement, ast.ImportFrom):
            for folder in (path.parent, TESTS):
                other = folder / f"{statement.module.replace('.', '/')}.py"
                if other.is_file() and other != path:
                    reading |= {name.asname or name.name for name in statement.names if name.name in readers(other)}
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            defined = {statement.name}
        else:
            defined = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        words = {getattr(node, field) for node in nodes for field in ("id", "attr", "arg") if hasattr(node, field)}
        for name in () if isinstance(statement, ast.Import | ast.ImportFrom) else defined:
            used.setdefault(name, set()).update(words)
    while more := {name for name, words in used.items() if words & reading} - reading:
        reading |= more
    return reading


def node_ids(test):
    """The tests that a node id of a family stands for: of a whole file those that read golden files."""
    path = TESTS / test.partition("::")[0]
    if "::" in test:
        return [str(TESTS / test)]
    return [f"{path}::{name}" for name in sorted(readers(path)) if name.startswith("test_")]


def test_the_tests_of_a_file_that_read_golden_files_are_found():
    named = lambda test: {name.rpartition("::")[2] for name in node_ids(test)}
    matching = {"test_sincos_matches_mae", "test_resample_matches_mae_and_copies_the_prefix"}
    assert named("ops/test_posembed.py") == matching
    assert "test_evit_in_stages" in named("scoring/test_vit_selectors.py")  # from a module beside it
    assert "test_its_tensors_have_published_names" in named("mim/test_crossmae.py")  # in its parameters


@pytest.mark.parametrize("kind", SETS)
def test_every_family_names_tests_that_exist(kind):
    for family in SETS[kind].values():
        for test in family.tests:
            assert node_ids(test), test
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}(" in (TESTS / file).read_text() or not name, test


@pytest.mark.slow
@pytest.mark.parametrize("part", [*SHORT, *LONG])
def test_files_of_other_sizes_pass_too(part, tmp_path):
    families = PARTS[part]
    folder_of(families, tmp_path)
    tests = [node for family in families for test in family.tests for node in node_ids(test)]
    options = ["-q", "-n0", "-m", "not eight_devices", "-p", "no:cacheprovider", "--tb=short"]
    env = {**os.environ, "JAXPRUNE_TEST_GOLDEN": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, cwd=TESTS.parent, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
