"""Lets a config file import modules beside it or in the current folder: those that its import statements name."""

import ast
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType


class _NamedByConfigs:
    """A finder of modules, after all others: installed modules are never replaced."""

    def __init__(self):
        self._folders: list[str] = []
        self._names: set[str] = set()

    def allow(self, config: Path) -> None:
        for folder in (config.resolve().parent, Path.cwd()):
            if str(folder) not in self._folders:
                self._folders.append(str(folder))
        self._names |= _imported([config])
        if self not in sys.meta_path:
            sys.meta_path.append(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds a module or package that a config, or a module found here, imports by its name."""
        if path is not None or name not in self._names:
            return None
        spec = PathFinder.find_spec(name, self._folders)
        if spec is not None:
            packages = [Path(folder) for folder in spec.submodule_search_locations or ()]
            files = [Path(spec.origin)] if spec.origin and spec.origin.endswith(".py") else []
            self._names |= _imported([*files, *(file for folder in packages for file in folder.glob("*.py"))])
        return spec


_FINDER = _NamedByConfigs()


def allow(config: Path) -> None:
    """Lets a config, and the modules that it finds so, import by name modules beside it and in the current folder."""
    _FINDER.allow(config)


def _imported(files: Iterable[Path]) -> set[str]:
    """Returns the names of modules, without those of their packages' parts, that Python files import."""
    names = set()
    for file in files:
        try:
            nodes = list(ast.walk(ast.parse(file.read_bytes())))
        except (SyntaxError, ValueError, OSError):
            continue  # importing it says what is wrong
        for node in nodes:
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names
