"""The settings of a config, with the comments from the source of their defaults."""

import ast
import collections
import importlib
import inspect
import io
import itertools
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune.commands.shared import defaults
from jaxprune.config import Config

# Functions whose result is a part of the config, with the prefix of its names.
_NESTED = {"data": "data.", "schedule": "optimizer.", "adamw": "optimizer."}


def comments(source: str) -> dict[str, str]:
    """Returns {dotted name: comment} of the dict entries and keyword arguments in a Python source.

    A comment belongs to a name if it is on the same line, without another name on it, or on the lines just above.
    """
    beside, alone = _comment_lines(source)
    names = list(_names(ast.parse(source), ""))
    on_line = collections.Counter(line for _, line in names)
    found: dict[str, str] = {}
    for name, line in names:
        if name in found or on_line[line] > 1:
            continue
        above = list(itertools.takewhile(alone.__contains__, range(line - 1, 0, -1)))
        parts = [alone[number] for number in reversed(above)] + ([beside[line]] if line in beside else [])
        if parts:
            found[name] = " ".join(parts)
    return found


def settings(config: Config, file: str | Path) -> Iterator[tuple[str, Any, str]]:
    """Yields (dotted name, value, comment) of all settings of a config; the comment is empty where there is none.

    Args:
      config: config of a task, which may contain configs of other tasks.
      file: path of the config; its comments take precedence over those of the task and of the shared settings.
    """
    written = [comments(source) for source in (Path(file).read_text(), *_sources(config.task))]
    yield from _settings(config, "", "", written)


def _settings(config: Config, shown: str, name: str, written: list[dict[str, str]]) -> Iterator[tuple[str, Any, str]]:
    for key, value in config.items():
        part: Config = value
        if not isinstance(value, ConfigDict):
            yield shown + key, value, next((found[name + key] for found in written if name + key in found), "")
        elif "task" in value:
            inner = [comments(source) for source in _sources(part.task)]
            yield from _settings(value, f"{shown}{key}.", "", inner)
        else:
            yield from _settings(value, f"{shown}{key}.", f"{name}{key}.", written)


def _sources(task: str) -> list[str]:
    module = importlib.import_module(f"jaxprune.commands.{task}")
    own = Path(module.__file__ or "").with_name("settings.py")
    return [*([own.read_text()] if own.is_file() else []), inspect.getsource(defaults)]


def _comment_lines(source: str) -> tuple[dict[int, str], dict[int, str]]:
    """Returns the comments by line: trailing comments, and comments on separate lines."""
    beside, alone = {}, {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            own_line = not token.line[: token.start[1]].strip()
            (alone if own_line else beside)[token.start[0]] = token.string.lstrip("# ").rstrip()
    return beside, alone


def _names(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield prefix + key.value, key.lineno
                yield from _names(value, f"{prefix}{key.value}.")
            else:
                yield from _names(value, prefix)
    elif isinstance(node, ast.keyword) and node.arg:
        yield prefix + node.arg, node.lineno
        yield from _names(node.value, f"{prefix}{node.arg}.")
    else:
        inside = _NESTED.get(node.name, "") if isinstance(node, ast.FunctionDef) else prefix
        for child in ast.iter_child_nodes(node):
            yield from _names(child, inside)
