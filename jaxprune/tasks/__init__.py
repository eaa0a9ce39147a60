"""What a run does: one file or package a task, each with `run(config, workdir)`."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxprune.errors import unknown

# Those that train, have `defaults()` and `smoke(config)`, and go on where they were interrupted.
TRAINING = ("pretrain", "finetune", "linear_probe", "train_ranker", "quickstart")


def names() -> dict[str, str]:
    """Returns {task: what it does, in a line}."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "run"):
            found[info.name] = (inspect.getdoc(module) or "").splitlines()[0]
    return found


def find(task: str) -> Callable[[Any, Path], dict[str, Any]]:
    """Returns the `run(config, workdir)` of a task; a `UserError` names the nearest one if there is none."""
    if task not in names():
        raise unknown("task", task, names())
    return importlib.import_module(f"{__name__}.{task}").run
