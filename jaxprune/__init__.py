"""Cheaper vision transformers in JAX: masked pre-training, patch ranking, token pruning and merging.

Submodules (`jaxprune.models`, `jaxprune.flops`, …) are imported lazily, so the core needs neither the data nor the
training stack.
"""

import importlib
import pkgutil
from typing import Any

__version__ = "0.1.0"

_PARTS = tuple(info.name for info in pkgutil.iter_modules(__path__) if info.name != "main")


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"jaxprune.{name}")
    raise AttributeError(f"module 'jaxprune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PARTS})
