"""Project rules that a machine can check: lint, import directions, what is importable, where configs are."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["lint", "format"])
def test_ruff(command):
    done = subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_only_point_down():
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_core_needs_neither_the_data_nor_the_training_stack():
    heavy = "ml_collections, grain, tensorflow_datasets, array_record, tensorboardX, beartype, matplotlib"
    code = f"""
import sys
for name in {heavy.split(", ")!r}:
    sys.modules[name] = None  # importing it raises
from flax import nnx
import jaxprune
model = jaxprune.models.create("vit", img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2, rngs=nnx.Rngs(0))
jaxprune.reduction.apply(model, jaxprune.reduction.Plan("topk", reduction_loc=(0,)))
jaxprune.mim.methods(); jaxprune.ops.furthest_sampling; jaxprune.losses.masked_mse
from jaxprune.weights.read import load_pretrained
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_torch_and_no_tensorflow_anywhere_in_the_package():
    for path in (ROOT / "jaxprune").rglob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split()
            assert words[:2] not in (["import", "torch"], ["import", "tensorflow"]), path
            assert not (words[:1] == ["from"] and words[1].split(".")[0] in ("torch", "tensorflow")), path


def test_commands_start_without_matplotlib_and_scipys_modules():
    # They take as long to import as all of this package, and most runs need them at their end, if at all.
    code = "import sys, jaxprune.main, jaxprune.commands.pretrain.run, jaxprune.commands.evaluate.run\n"
    code += "print([name for name in ('matplotlib', 'scipy.stats', 'scipy.interpolate') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_test_file_has_its_own_name():
    # pytest imports a test file by its name alone where the folder is not a package.
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert sorted(set(names)) == sorted(names)
