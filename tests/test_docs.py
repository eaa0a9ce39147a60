"""The site: every method has a page, every command on it is one, every block of Python runs, and it builds."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from support import code_blocks
from torch_files import write
from videos import numbered, write_video

from jaxprune import dense, dynamic, main, mim, models, reduction, scoring
from jaxprune.checkpoints import save_pretrained
from jaxprune.weights.rules import to_published

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FAMILIES = {"reduction": reduction, "scoring": scoring, "mim": mim, "dynamic": dynamic, "dense": dense}
# Blocks of Python that cannot run say why, in a line `% not run: …` before them.
NOT_RUN = re.compile(r"^% not run: \S.*\n+```python\n.*?^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """The pages that are written by hand, without those that wait for a method of another version."""
    found = [path for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "api"]
    return [path for path in found if path.stem == "index" or path.stem in known(path)]


def known(path: Path) -> set[str]:
    family = FAMILIES.get(path.parent.name)
    return set(family.methods()) if family else {path.stem}


def python(path: Path) -> list[str]:
    return code_blocks(NOT_RUN.sub("", path.read_text()), "python")


def page_id(path: Path) -> str:
    return str(path.relative_to(DOCS).with_suffix(""))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_has_a_page_with_its_formula_and_an_example(family):
    for name in FAMILIES[family].methods():
        text = (DOCS / family / f"{name}.md").read_text()
        assert re.match(rf"# .*\(`{name}`\)\n", text), name
        assert "$" in text and code_blocks(text, "python"), name
        assert len(text.partition("## Example")[0].split()) > 30, name


def test_every_command_names_a_config_and_keys_that_there_are():
    commands = []
    for path in [*pages(), ROOT / "CONTRIBUTING.md"]:
        for block in code_blocks(path.read_text(), "bash"):
            commands += re.findall(r"--config=configs/\S+.*", block.replace("\\\n", " "))
    assert len(commands) > 20
    for command in commands:
        words = command.partition(" #")[0].replace('"', "").split()
        main.checked([word for word in words if word.startswith("--config")])


def test_files_that_it_names_exist():
    for path in pages():
        for name in re.findall(r"`((?:jaxprune|tests|configs|examples|scripts)/[\w./*<>]+)`", path.read_text()):
            assert list(ROOT.glob(name.replace("<data>", "*"))), f"{path.name}: {name}"


def test_every_block_of_python_is_python():
    for path in pages():
        for block in python(path):
            ast.parse(block)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A directory with what the pages open."""
    folder = tmp_path_factory.mktemp("docs")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 200, 3), np.uint8)).save(folder / "photo.jpg")
    write_video(folder / "film.mp4", numbered(40))
    deit = models.create("deit_small_patch16_224", num_classes=1000, rngs=nnx.Rngs(1))
    save_pretrained(deit, folder / "deit_small.safetensors")
    write(folder / "resnet18.pth", to_published(models.create("resnet18", rngs=nnx.Rngs(1))))
    return folder


@pytest.fixture(scope="module")
def first_steps():
    """`model` and `images` of the first page, small enough to run every method's example."""
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 48, "depth": 12, "num_heads": 3, "num_classes": 10}
    images = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    return {"model": models.create("vit", **sizes, rngs=nnx.Rngs(0)), "images": images}


def run(path: Path, names: dict) -> None:
    for block in python(path):
        exec(compile(block, page_id(path), "exec"), names)


# An engine decides on the host, so the examples of networks with exits run; those of other methods are traced.
ON_HOST = [path for path in pages() if path.parent.name == "dynamic" or path.name == "dtop.md"]
METHODS = [path for path in pages() if path.parent.name in FAMILIES and path not in ON_HOST and python(path)]
GUIDES = [path for path in pages() if path not in METHODS and python(path)]


@pytest.mark.slow
@pytest.mark.parametrize("path", METHODS, ids=page_id)
def test_the_example_of_a_method_can_be_traced(path, files, first_steps, monkeypatch):
    """Names, arguments and shapes; the contracts of the families compute every method."""
    monkeypatch.chdir(files)
    jax.eval_shape(lambda images: run(path, {**first_steps, "images": images}), first_steps["images"])


@pytest.mark.slow
@pytest.mark.parametrize("path", GUIDES, ids=page_id)
def test_its_python_runs(path, files, monkeypatch):
    monkeypatch.chdir(files)
    run(path, {})


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    for module in ("sphinx", "myst_parser", "furo", "latex2mathml"):
        pytest.importorskip(module)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "reduction" / "tome.html").read_text()
    assert "<math" in page and "Merges by bipartite matching" in page.partition("Options")[2]
    assert "jaxprune.reduction.tome" in (tmp_path / "api" / "reduction.html").read_text()
