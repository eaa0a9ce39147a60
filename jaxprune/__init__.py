"""Cheaper vision transformers in JAX: masked pre-training, patch ranking, token pruning and merging.

Subpackages are imported on first use (`jaxprune.models`, `jaxprune.reduction`, …), so that the core needs neither
the data nor the training stack.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_SUBPACKAGES = (
    "checkpoints",
    "data",
    "losses",
    "metrics",
    "mim",
    "models",
    "nn",
    "ops",
    "parallel",
    "reduction",
    "scoring",
    "tasks",
    "train",
    "viz",
)


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"jaxprune.{name}")
    raise AttributeError(f"module 'jaxprune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_SUBPACKAGES])
