"""The strict session: what Equinox asks of itself, we ask of ourselves."""

import gc
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
# Commands that the tests start keep nothing in the user's directory.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")

# Compiling is most of the time of these tests, and nothing here runs long enough to pay back what XLA optimises.
COMPILE_QUICKLY = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
]


# libtpu reads the flags when it compiles.
COMPILE_FOR_TPU = """
import jax
from jaxprune.accelerators import Target
place = jax.sharding.SingleDeviceSharding(Target.parse("v5e").devices()[0])
jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((8,), "float32", sharding=place)).compile()
"""


def accepted(flags: list[str]) -> bool:
    """Whether this XLA, and that of libtpu if it is installed, know the flags; they end a process with another one."""
    env = {**os.environ, "XLA_FLAGS": " ".join(flags)}
    script = "import jax; jax.devices()" if not importlib.util.find_spec("libtpu") else COMPILE_FOR_TPU
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=env, capture_output=True).returncode == 0


# Once in a session: other processes of it, and what the tests start, inherit the flags. Not on a GPU.
if os.environ["JAX_PLATFORMS"] == "cpu" and COMPILE_QUICKLY[0] not in os.environ.get("XLA_FLAGS", ""):
    known = COMPILE_QUICKLY if accepted(COMPILE_QUICKLY) else [flag for flag in COMPILE_QUICKLY if accepted([flag])]
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *known]).strip()

from jaxtyping import install_import_hook  # noqa: E402

# Shapes written in the signatures are checked while the tests run, and only then.
install_import_hook(
    [
        f"jaxprune.{package}"
        for package in ("ops", "losses", "metrics", "nn", "reduction", "models", "mim", "scoring", "ranking")
    ],
    "beartype.beartype",
)

import few_programs  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")
# Programs need not say where in the source they come from.
jax.config.update("jax_traceback_in_locations_limit", 0)
few_programs.install()

# A full collection visits all that JAX has cached, seconds towards the end: a few are enough.
gc.set_threshold(*gc.get_threshold()[:2], 100)


# With --dist loadfile a file is one piece of work. The longest come first: none is left for one worker at the end.
LONGEST = ("test_scripts", "test_eight_devices", "test_docs", "test_processes", "test_detect", "test_segment")


@pytest.fixture
def rng_key():
    return jax.random.key(0)


@pytest.fixture(autouse=True)
def warnings_of_ours_are_errors():
    warnings.filterwarnings("error", module=r"jaxprune(\..*)?$")


@pytest.fixture(autouse=True)
def turns_of_a_single_run(monkeypatch):
    """Tests read what is made of times, not the times."""
    if (timing := sys.modules.get("jaxprune.bench.timing")) is not None:
        monkeypatch.setattr(timing, "SHORTEST", 0.0)


@pytest.fixture(autouse=True)
def messages_reach_caplog():
    """A program that a test starts in this process sends its messages to the terminal instead; not beyond its test."""
    logger = logging.getLogger("jaxprune")
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before


@pytest.fixture
def in_a_terminal():
    """A closed terminal ends programs again, where nohup started the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def pytest_collection_modifyitems(config, items):
    """Puts the longest files first; leaves tests that need eight devices to the process that has them."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    if "--xla_force_host_platform_device_count=8" in os.environ["XLA_FLAGS"]:
        return
    elsewhere = [item for item in items if item.get_closest_marker("eight_devices")]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]
