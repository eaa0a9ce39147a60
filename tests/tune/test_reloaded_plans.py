"""A plan's text reloads the network that was certified: in a fresh process, from the weights of the dense one."""

import os
import subprocess
import sys

import numpy as np
import pytest
from flax import nnx

from jaxprune import checkpoints, models, reduction
from jaxprune.commands.tune.settings import METHODS
from jaxprune.errors import UserError
from jaxprune.nn.params import jitted
from jaxprune.tune.candidates import candidates, require_untrained
from jaxprune.tune.cost_table import Cost

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2, "num_classes": 4}
RELOAD = """
import sys
from pathlib import Path
import numpy as np
from flax import nnx
from jaxprune import checkpoints, reduction
from jaxprune.nn.params import jitted
folder = Path(sys.argv[1])
for path in sorted(folder.glob("*.txt")):
    dense = checkpoints.load_model(folder / "dense.safetensors")
    fast = reduction.apply(dense, reduction.Plan.from_text(path.read_text().strip()), rngs=nnx.Rngs(11))
    logits = jitted(fast, lambda network, images: network(images)[0])(np.load(folder / "images.npy"))
    np.save(path.with_suffix(".npy"), logits)
"""


def logits_of(network, images):
    return np.asarray(jitted(network, lambda network, images: network(images)[0])(images))


@pytest.mark.slow
def test_every_candidate_is_reloaded_from_its_text_in_a_fresh_process(tmp_path):
    assert set(METHODS) <= set(reduction.untrained())
    model = models.create("vit", **SIZES, kernel_init=nnx.initializers.normal(0.3), rngs=nnx.Rngs(0))
    images = np.random.default_rng(0).normal(size=(3, 16, 16, 3)).astype(np.float32)
    np.save(tmp_path / "images.npy", images)
    checkpoints.save_model(model, tmp_path / "dense.safetensors")
    expected = {}
    for method in reduction.untrained():
        for candidate in candidates(model, (method,), [(1, 2)], [0.5], lambda network: Cost(1.0, 1.0)):
            (tmp_path / f"{method}.txt").write_text(f"{candidate.name}\n")
            expected[method] = logits_of(candidate.model, images)
    assert set(METHODS) <= set(expected)
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", RELOAD, str(tmp_path)], check=True, env=env, timeout=300)
    for method, logits in expected.items():
        np.testing.assert_allclose(np.load(tmp_path / f"{method}.npy"), logits, atol=1e-5, err_msg=method)
    differing = [method for method in expected if np.abs(expected[method] - logits_of(model, images)).max() > 1e-3]
    assert set(differing) == set(expected), "every plan changes the network"


def test_methods_that_would_be_random_are_refused():
    with pytest.raises(UserError, match=r"sit has parameters.*dpc_knn"):
        require_untrained(("topk", "sit"))
    require_untrained(METHODS)
