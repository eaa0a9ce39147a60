"""The tasks of a run: one file or package each, with `run(config, workdir)`."""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxprune.errors import unknown

# The training tasks; they have `defaults()` and `smoke(config)`, and resume after an interruption.
TRAINING = ("pretrain", "finetune", "linear_probe", "train_ranker", "quickstart")


def names() -> dict[str, str]:
    """Returns {task: one-line description}."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "run"):
            found[info.name] = (inspect.getdoc(module) or "").splitlines()[0]
    return found


def find(task: str) -> Callable[[Any, Path], dict[str, Any]]:
    """Returns the `run(config, workdir)` of a task, which checks the whole config before it starts.

    Raises:
      UserError: there is no such task; the message suggests the nearest one.
    """
    module = _module(task)

    @functools.wraps(module.run)
    def run(config: Any, workdir: Path) -> dict[str, Any]:
        checks = importlib.import_module(f"{__name__}.shared.checks")
        missing = [*checks.of_networks_of_scorers(config), *getattr(module, "missing", lambda _: ())(config)]
        checks.require([*checks.of_workdir(Path(workdir)), *problems(config), *missing])
        if task in TRAINING:
            return module.run(config, Path(workdir))
        first = importlib.import_module(f"{__name__}.shared.train_first")
        config, stopped = first.with_run(config, Path(workdir))
        return stopped or module.run(config, Path(workdir))

    return run


def problems(config: Any, prefix: str = "config.") -> list[str]:
    """Returns all problems of a config, and of the configs of other tasks inside it, one sentence each.

    Besides the common checks (`shared.checks`), a task may define two functions that return sentences: `check(config)`,
    and `missing(config)` for settings that are required unless an enclosing task fills them in.
    """
    checks = importlib.import_module(f"{__name__}.shared.checks")
    found = [*checks.of_settings(config, prefix), *getattr(_module(config.task), "check", lambda _: ())(config)]
    for name, value in config.items():
        if hasattr(value, "items") and "task" in value:
            found += problems(value, f"{prefix}{name}.")
    return found


def _module(task: str) -> ModuleType:
    if task not in names():
        raise unknown("task", task, names())
    return importlib.import_module(f"{__name__}.{task}")
