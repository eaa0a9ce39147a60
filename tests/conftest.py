"""The strict session: what Equinox asks of itself, we ask of ourselves."""

import os
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
# Commands that the tests start keep nothing in the user's directory.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")
# Compiling is most of the time of these tests, and nothing here runs long enough to pay it back.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"

from jaxtyping import install_import_hook

# Shapes written in the signatures are checked while the tests run, and only then.
install_import_hook(
    [
        f"jaxprune.{floor}"
        for floor in ("ops", "losses", "metrics", "nn", "reduction", "models", "mim", "scoring", "ranking")
    ],
    "beartype.beartype",
)

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture
def rng_key():
    return jax.random.key(0)


@pytest.fixture(autouse=True)
def warnings_of_ours_are_errors():
    warnings.filterwarnings("error", module=r"jaxprune(\..*)?$")
