"""The first losses of every small framework for pre-training, and the instructions that they are computed with."""

import platform
from pathlib import Path

import jax
from small_frameworks import create, images
from support import GOLDEN, quick_compile

from jaxprune import parallel
from jaxprune.nn.params import merge, split
from jaxprune.train import optimizer, state
from jaxprune.train.step import FIXED, KEPT, make_train_step

STEPS = 20
FOLDER = GOLDEN / "losses"
# Sets of instructions, the newest first, as XLA calls them, and the flag of a processor that has them.
SETS = {"AVX512": "avx512f", "AVX2": "avx2", "SSE4_2": "sse4_2", "NEON": "asimd"}


def instructions() -> str:
    """The newest of `SETS` that this processor has, or ""."""
    known = Path("/proc/cpuinfo")
    flags = set(known.read_text().split()) if known.exists() else set()
    if platform.machine() == "arm64":
        flags.add("asimd")
    return next((name for name, flag in SETS.items() if flag in flags), "")


def losses(method: str) -> list[float]:
    """The losses of the first steps of a framework."""
    parts = split(model := create(method))
    keepers = tuple(keeper._replace(first=1, period=6) for keeper in model.keepers(1))
    tx = optimizer.adamw(1e-3, weight_decay=0.05)
    now = state.create(parts.params, tx, parallel.make_mesh(devices=jax.devices()[:1]), keepers=keepers)
    batch = {"image": images(), FIXED: parts.rest}

    def loss(params, batch, key):
        network = merge(parts.graph, params, batch[FIXED])
        return network.training_loss(batch["image"], key, **batch.get(KEPT, {})), {}

    lowered = make_train_step(loss, tx, keepers=keepers).lower(now, batch, jax.random.key(0))
    step, found = lowered.compile(compiler_options=quick_compile()), []
    for _ in range(STEPS):
        now, metrics = step(now, batch, jax.random.key(0))
        found.append(float(metrics["loss"]))
    return found
