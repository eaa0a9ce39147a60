"""Configs with damaged arguments or odd settings, as they are mistyped: a config, or one short line."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attacks import Case
from attacks.plans import mutated, with_another_word
from jaxprune import commands, config_files, main
from jaxprune.errors import UserError

# By type, what stands in place of a setting.
VALUES: dict[type, tuple] = {
    int: (-1, 0, 1, 7, 2**31, 10**30),
    float: (-1.0, 0.0, 0.5, 1.0, 7.3, 1e308, float("inf"), float("nan")),
    str: ("", "x", "x" * 5000, "\x1b[2J", "a\nb", "../x", "é", "topk@3:keep_rate=nan", "mae", "0", "*", "\x00"),
    bool: (True, False),
    tuple: ((), (0,), (-1, 10**9), (0.5, 2.0, float("nan")), ("x", ""), ("\x1b[2J",)),
}


def _names() -> list[str]:
    """The bundled configs, without those that only put others in a row."""
    return [name for name in config_files.configs() if "reproduce" not in name]


def arguments(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields the names of bundled configs with damaged arguments."""
    names = _names()
    texts = {name: ",".join(f"{key}={value}" for key, value in config_files.arguments(name).items()) for name in names}
    rng = random.Random(seed)
    for number in range(count):
        name = rng.choice(names)
        text = rng.choice(("smoke", texts[name], f"smoke,{texts[name]}")) or "smoke"
        damaged = f"{name}:{(mutated if number % 2 else with_another_word)(text, rng)}"
        yield Case(damaged, lambda damaged=damaged: main.load_config(damaged).task in commands.names())


def settings(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields bundled configs with one setting of another value of its type, which are checked as before a run."""
    configs = {name: main.load_config(f"{name}:smoke") for name in _names()}
    rng = random.Random(seed)
    for _ in range(count):
        name = rng.choice(list(configs))
        config = configs[name].copy_and_resolve_references()
        key, value, _ = rng.choice(commands.described(config))
        odd = rng.choice(VALUES.get(type(value), VALUES[str]))
        with config.unlocked(), config.ignore_type():
            config.update_from_flattened_dict({key: odd})
        yield Case((name, key, odd), lambda config=config: _is_checked(config, folder))


def _is_checked(config: Any, folder: Path) -> bool:
    """Whether the check of a config finds nothing; the error is its longest line, or one that cannot be printed."""
    lines = commands.problems(config)
    if lines:
        raise UserError(max(lines, key=lambda line: (not line.isprintable(), len(line))))
    return True
