"""What a run does: one file or package a task, each with `run(config, workdir)`."""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
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
    """Returns the `run(config, workdir)` of a task, which checks the whole config before it makes anything.

    Raises:
      UserError: there is no such task; the nearest one is offered.
    """
    module = _module(task)

    @functools.wraps(module.run)
    def run(config: Any, workdir: Path) -> dict[str, Any]:
        checks = importlib.import_module(f"{__name__}.setup.checks")
        missing = [*checks.of_networks_of_scorers(config), *getattr(module, "missing", lambda _: ())(config)]
        checks.require([*checks.of_workdir(Path(workdir)), *problems(config), *missing])
        if task in TRAINING:
            return module.run(config, Path(workdir))
        first = importlib.import_module(f"{__name__}.setup.first")
        config, stopped = first.with_run(config, Path(workdir))
        return stopped or module.run(config, Path(workdir))

    return run


def problems(config: Any, prefix: str = "config.") -> list[str]:
    """Returns all that is wrong with a config, and with those of other tasks inside of it, a sentence each.

    A task adds to what holds for every task (`setup.checks`) by two functions that return sentences: `check(config)`,
    and `missing(config)`, what the config lacks unless another task that it belongs to fills it in.
    """
    checks = importlib.import_module(f"{__name__}.setup.checks")
    found = [*checks.of_settings(config, prefix), *getattr(_module(config.task), "check", lambda _: ())(config)]
    for name, value in config.items():
        if hasattr(value, "items") and "task" in value:
            found += problems(value, f"{prefix}{name}.")
    return found


def _module(task: str) -> ModuleType:
    if task not in names():
        raise unknown("task", task, names())
    return importlib.import_module(f"{__name__}.{task}")
