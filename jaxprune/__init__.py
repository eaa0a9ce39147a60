"""Cheaper vision transformers in JAX: masked pre-training, patch ranking, token pruning and merging.

Submodules (`jaxprune.models`, `jaxprune.flops`, …) are imported lazily, so the core needs neither the data nor the
training stack.
"""

# `python -m jaxprune.main` imports this file before it decides where modules are searched: only what Python itself has
# imported by then may be imported at its start.
import importlib
import importlib.util

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.2.0"


def __getattr__(name: str) -> "Any":
    spec = importlib.util.find_spec(f"{__name__}.{name}") if name != "main" else None
    if spec is None or spec.origin is None:
        raise AttributeError(f"module 'jaxprune' has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    import pkgutil

    return sorted({*globals(), *(info.name for info in pkgutil.iter_modules(__path__) if info.name != "main")})
