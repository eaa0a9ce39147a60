"""CONTRIBUTING.md is true: what it shows how to add works when it is added as it stands."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import code_blocks

import jaxprune
from jaxprune import mim, models, reduction, scoring
from jaxprune.nn.tokens import all_present
from jaxprune.reduction import Plan

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
FILES = {block.splitlines()[0].removeprefix("# "): block.partition("\n")[2] for block in code_blocks(TEXT, "python")}
SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}


@pytest.fixture
def added(tmp_path, monkeypatch):
    """The families with the files of the page beside their own."""
    for package in (reduction, scoring, mim, models):
        folder = package.__name__.replace(".", "/")
        for path, source in FILES.items():
            if Path(path).parent == Path(folder):
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path).write_text(source)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / folder)])


def images(batch=2):
    return jax.random.normal(jax.random.key(1), (batch, 16, 16, 3))


def test_the_paths_it_names_exist_and_its_blocks_are_short():
    named = set(re.findall(r"`((?:jaxprune|tests|configs|examples|docs)/[\w./]+)`", TEXT))
    missing = {path for path in named if not (ROOT / path).exists()}
    assert missing == {"tests/reduction/test_value_norm.py", "docs/reduction/value_norm.md"}
    assert len(FILES) == 5 and not any((ROOT / path).exists() for path in FILES)
    assert max(len(source.splitlines()) for source in FILES.values()) < 70


def test_the_reducer_keeps_the_longest_values(added):
    step = reduction.Step(0, 1, (4, 4), 1, tokens_in=16, num_keep=6, keep_rate=0.4, embed_dim=16, num_heads=2)
    values = np.random.default_rng(0).normal(size=(2, 2, 17, 8)).astype(np.float32)
    tokens = all_present(jnp.zeros((2, 17, 16)), 1)
    reduced, report = reduction.methods()["value_norm"](step)(tokens, reduction.Attended(values=jnp.asarray(values)))
    lengths = np.linalg.norm(values, axis=-1).mean(1)[:, 1:]
    np.testing.assert_array_equal(report.kept, np.argsort(-lengths, axis=1)[:, :6])
    assert reduced.x.shape == (2, 7, 16)


def test_the_scorer_prefers_contrast(added):
    flat = images().at[:, :4, :4].set(0.5)
    scores = scoring.create("contrast", grid=(4, 4))(flat)
    assert scores.shape == (2, 16)
    np.testing.assert_array_equal(scores.argmin(1), 0)
    np.testing.assert_allclose(scores[0, 5], flat[0, 4:8, 4:8].std(), rtol=1e-5)


def test_the_framework_has_a_loss_and_a_picture(added):
    def call(images, key):
        model = mim.create("brightness", **SMALL, rngs=nnx.Rngs(0))
        return model(images, key=key), model.picture(images, key)

    (loss, aux), picture = jax.eval_shape(call, images(), jax.random.key(0))
    assert loss.shape == () and aux.pred.shape == (2, 16, 1) and aux.masks.ids_keep.shape == (2, 4)
    assert picture.images.shape == images().shape


def test_the_framework_throws_patches_although_it_declares_no_such_argument(added):
    arguments = {**SMALL, "reconstruction": "progressive", "throw_ratio": 0.25, "kernel_size": 3}
    model = mim.create("brightness", **arguments, rngs=nnx.Rngs(0))
    assert model.masker.num_masked - model.masker.num_retained == 4
    assert model.decoder.aggregate.kernel.shape == (3, 3, 256)


def test_the_network_takes_plans(added):
    plan, found = Plan("tome", 0.5, (1,)), []

    def call(images):
        model = models.create("isotropic_small_patch16_224", **SMALL, rngs=nnx.Rngs(0))
        fast = reduction.apply(model, plan)
        found.append((jaxprune.flops.of_model(fast), jaxprune.flops.of_model(model, plan)))
        return fast(images)

    logits, aux = jax.eval_shape(call, images())
    assert logits.shape == (2, 1000) and aux.assign[0].shape == (2, 16) and found[0][0] == found[0][1]


def applied(text: str, root: Path) -> None:
    """Applies the page's diffs, whose hunks are found by their lines and have no numbers."""
    for section in re.split(r"^--- a/", text, flags=re.MULTILINE)[1:]:
        header, *hunks = re.split(r"^@@\n", section, flags=re.MULTILINE)
        path = root / header.splitlines()[0]
        for hunk in hunks:
            lines = hunk.splitlines()
            before = "\n".join(line[1:] for line in lines if line[:1] in (" ", "-"))
            after = "\n".join(line[1:] for line in lines if line[:1] in (" ", "+"))
            content = path.read_text()
            assert content.count(before) == 1, f"{path.name} has this {content.count(before)} times:\n{before}"
            path.write_text(content.replace(before, after))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A copy of the repository with everything that the page adds."""
    root = tmp_path_factory.mktemp("repository")
    for part in ("jaxprune", "tests", "configs"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__", "golden"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for path, source in FILES.items():
        (root / path).write_text(source)
    for block in code_blocks(TEXT, "diff"):
        applied(block, root)
    return root


def run(root, *arguments):
    done = subprocess.run([sys.executable, *arguments], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.slow
def test_what_is_added_has_our_style(repository):
    changed = [*FILES, "tests/hosts/__init__.py", "jaxprune/weights/read_names.py"]
    run(repository, "-m", "ruff", "check", *changed)
    run(repository, "-m", "ruff", "format", "--check", *changed)
    run(repository, "-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))")


@pytest.mark.slow
def test_what_is_added_keeps_its_contract(repository):
    chosen = "(value_norm and (cls or conv_map)) or contrast or brightness or isotropic"
    options = ["-q", "-n0", "-p", "no:cacheprovider", "-m", "not eight_devices", "-k", chosen]
    printed = run(repository, "-m", "pytest", *options, "tests/contracts", "tests/export/test_stablehlo.py")
    assert int(re.search(r"(\d+) passed", printed)[1]) >= 13 and "failed" not in printed


LOADS = """
import re
import numpy as np, jaxprune
from flax import nnx
from jaxprune.weights.rules import to_published
sizes = dict(img_size=32, embed_dim=16, depth=2, num_heads=2, num_classes=3)
make = lambda seed: jaxprune.models.create("vit_small_patch16_northern", **sizes, rngs=nnx.Rngs(seed))
theirs = {
    "patch_embed.proj": "patchify", "cls_token": "class_token", "pos_embed": "positions", r"mlp\\.": "",
    r"blocks\\.(\\d+)": r"layer\\1", r"\\.norm(\\d)": r".ln\\1", "^norm": "ln",
    r"attn\\.qkv": "attention.in", r"attn\\.proj": "attention.out", "^head": "classifier",
}
source, tensors = make(0), {}
for name, tensor in to_published(source).items():
    for ours, there in theirs.items():
        name = re.sub(ours, there, name)
    tensors[name] = tensor
model = make(1)
jaxprune.checkpoints.load_pretrained(model, tensors)
for name, tensor in to_published(model).items():
    np.testing.assert_array_equal(tensor, to_published(source)[name])
assert "layer1.attention.in.weight" in tensors and model.preprocessing.crop_pct == 0.9
"""


@pytest.mark.slow
def test_the_family_of_weights_is_read(repository):
    run(repository, "-c", LOADS)
