"""Methods and networks of other packages, found by their entry points."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flax import nnx
from support import installed_package

from jaxprune import models, plugins
from jaxprune.errors import UserError

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tests" / "plugin_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A directory with the package and its metadata."""
    return installed_package(PACKAGE, tmp_path_factory.mktemp("site"))


def run(installed: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(installed), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


USE = """
import jax.numpy as jnp
from flax import nnx
import jaxprune
from jaxprune.reduction import Plan

assert "vit_toy" in jaxprune.models.names() and "vit_tiny_patch16_224" in jaxprune.models.names()
model = jaxprune.models.create("vit_toy", num_classes=5, rngs=nnx.Rngs(0))
fast = jaxprune.reduction.apply(model, Plan("longest", 0.5, (1,)))
logits, aux = fast(jnp.ones((1, 16, 16, 3)))
assert logits.shape == (1, 5) and aux.kept[0].shape == (1, 8)
scorer = jaxprune.scoring.create("brightest", grid=(4, 4))
assert scorer(jnp.ones((1, 16, 16, 3))).shape == (1, 16)
sizes = dict(decoder_embed_dim=16, decoder_depth=1, decoder_num_heads=2, mask_ratio=0.5)
encoder = dict(img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2)
assert type(jaxprune.mim.create("plain_mae", **encoder, **sizes, rngs=nnx.Rngs(0))).__name__ == "PlainMAE"
assert Plan.from_text("longest@1:keep_rate=0.5").text == "longest@1:keep_rate=0.5"
"""


@pytest.mark.slow
def test_everything_that_another_package_adds_works(installed):
    run(installed, "-c", USE)


@pytest.mark.slow
def test_the_command_line_lists_it(installed):
    text = run(installed, "-m", "jaxprune.main", "--help")
    assert all(word in text for word in ("longest", "brightest", "plain_mae", "vit_toy"))


@pytest.mark.slow
def test_the_contract_of_reducers_tests_it(installed):
    arguments = ("-n", "0", "-q", "-p", "no:cacheprovider", "-k", "longest and (cls or conv_map)")
    text = run(installed, "-m", "pytest", "tests/contracts/test_reduction.py", *arguments)
    assert " passed" in text and " failed" not in text


ENTRY = importlib.metadata.EntryPoint
BAD = {
    "a name in use": (
        ENTRY("resnet18", "somewhere:Network", "jaxprune.models"),
        "registers .* 'resnet18', which exists",
    ),
    "no such module": (ENTRY("other", "no_such_package:Network", "jaxprune.models"), "cannot be loaded .* uninstall"),
    "no network": (ENTRY("other", "pathlib:Path", "jaxprune.models"), "is not a subclass of Module"),
}


@pytest.mark.parametrize("what", BAD)
def test_an_entry_point_that_leads_nowhere_is_refused(what, monkeypatch):
    entry, message = BAD[what]
    monkeypatch.setattr(plugins, "_installed", lambda group: (entry,) if group == "jaxprune.models" else ())
    with pytest.raises(UserError, match=message):
        models.create(entry.name, rngs=nnx.Rngs(0))
