"""The commands: one folder each, with its settings (`settings.py`), its run (`run.py`) and its report (`page.py`).

A folder is found by itself. Its package has the class `Settings` and `run(config, workdir)`; one that trains also has
`smoke(config)`, which shrinks a config to seconds.
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxprune.commands.shared import settings
from jaxprune.errors import UserError, unknown
from jaxprune.files import as_path, require_utf8


def names() -> dict[str, str]:
    """Returns {command: one-line description}."""
    return {name: (inspect.getdoc(_module(name)) or "").partition("\n")[0] for name in _folders()}


def find(task: str) -> Callable[[Any, Path], dict[str, Any]]:
    """Returns the `run(config, workdir)` of a command, which checks the whole config before it starts.

    Raises:
      UserError: there is no such command; the message suggests the nearest one.
    """
    module = _module(task)

    @functools.wraps(module.run)
    def run(config: Any, workdir: Path) -> dict[str, Any]:
        workdir = Path(workdir)
        require_usable(config, workdir)
        if module.Settings.TRAINS:
            return module.run(config, workdir)
        from jaxprune.commands.shared import train_first

        config, stopped = train_first.with_run(config, workdir)
        return stopped or module.run(config, workdir)

    return run


def require_usable(config: Any, workdir: Path) -> None:
    """Checks the whole config of a command, and the directory of its run.

    Raises:
      UserError: there are problems; all of them are listed.
    """
    missing = settings.missing(_module(config.task).Settings(), config)
    _require([*_unusable(workdir), *problems(config), *missing])


def settings_of(task: str) -> settings.Settings:
    """Returns the settings of a command, with their defaults.

    Raises:
      UserError: there is no such command; the message suggests the nearest one.
    """
    return _module(task).Settings()


def problems(config: Any) -> list[str]:
    """Returns all problems of a config, and of the configs of other commands inside it, one sentence each."""
    return [line for part in _parts(config, "config.") for line in settings.problems(*part)]


def described(config: Any) -> list[tuple[str, Any, str]]:
    """Returns (dotted key, value, help) of every setting of a config, and of the configs inside it."""
    return [row for part in _parts(config, "") for row in settings.described(*part)]


def leading(config: Any, most: int = 10) -> list[tuple[str, Any, str]]:
    """Returns the rows of `described` that a command's help lists first: those of `Settings.FIRST`, then the next."""
    rows = {row[0]: row for row in described(config)}
    keys = dict.fromkeys((*(key for key in settings_of(config.task).FIRST if key in rows), *rows))
    return [rows[key] for key in [*keys][:most]]


def declared_defaults(config: Any) -> dict[str, Any]:
    """Returns {dotted key: default} of the settings of a config, and of the configs inside it."""
    return {key: value for part in _parts(config, "") for key, value in settings.declared_defaults(*part).items()}


def _parts(config: Any, prefix: str) -> Iterator[tuple[settings.Settings, Any, str]]:
    """Yields (settings, config, prefix of its keys) of a config, and of the configs of other commands inside it."""
    yield settings_of(config.task), config, prefix
    for name, value in config.items():
        if settings.is_config(value):
            yield from _parts(value, f"{prefix}{name}.")


def _module(task: str) -> ModuleType:
    if task not in _folders():
        raise unknown("task", task, _folders())
    return importlib.import_module(f"{__name__}.{task}")


def _folders() -> list[str]:
    return sorted(info.name for info in pkgutil.iter_modules(__path__) if info.name != "shared")


def _unusable(workdir: Path) -> list[str]:
    """Returns the reasons why a run directory cannot be created."""
    try:
        require_utf8(as_path(workdir).absolute())
    except UserError as error:
        return [f"workdir: {error}"]
    existing = next(path for path in (workdir.absolute(), *workdir.absolute().parents) if path.exists())
    if existing.is_dir():
        return []
    return [f"workdir={workdir}: {existing} is not a directory: give another --workdir."]


def _require(problems: Sequence[str]) -> None:
    """Raises an error that lists all problems, if there are any."""
    problems = list(dict.fromkeys(problems))
    if len(problems) == 1:
        raise UserError(problems[0])
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise UserError(f"{len(problems)} settings cannot be used:\n{listed}")
