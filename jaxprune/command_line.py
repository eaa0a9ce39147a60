"""The words of the command line: the config that they name, its keys that they set, and the directory of the run."""

import re
from pathlib import Path

from ml_collections import ConfigDict

from jaxprune.config import Arguments, Config
from jaxprune.config_files import config_path, function_of, load_config, takes_argument
from jaxprune.errors import UserError, shortened, unknown


def checked(argv: list[str]) -> list[str]:
    """Returns the command line with the config's path resolved, after checking that its overrides name existing keys.

    Raises:
      UserError: there is no config, or it has no such key; the message suggests the nearest one.
    """
    text = value_of(argv, "config")
    if text is None:
        raise UserError("Give --config=FILE.py, such as --config=configs/quickstart.py; --help lists all configs.")
    keys = _leaves(config_of_task(text))
    for word in argv:
        if match := re.match(r"--?config\.([^=]+)", word):
            key = match.group(1)
            if key not in keys:
                raise unknown(f"key of {text}", key, keys)
    file, _, arguments = text.partition(":")
    path = config_path(file)
    # Without the colon ml_collections would pass no argument, and with it one.
    resolved = f"{path}:{arguments}" if takes_argument(function_of(path)) else str(path)
    words = list(argv)
    for index, flag in _places(argv, "config"):
        words[index] = f"{flag}{resolved}"
    return words


def config_of_task(text: str) -> Config:
    """Returns the config of `FILE.py:arguments`.

    Raises:
      UserError: it names no task, or asks for the arguments.
    """
    try:
        config = load_config(text)
    except Arguments as accepted:
        file = text.partition(":")[0]
        raise UserError(f"{text} names no argument ({accepted}): --config={file} --help explains them.") from None
    if "task" not in config:
        raise UserError(f"The config {text} names no task: write config.task = 'evaluate', or another, in its file.")
    return config


def value_of(argv: list[str], flag: str) -> str | None:
    """Returns the value of a flag, of the last one if it was given twice as absl does, or None."""
    values = [argv[index].removeprefix(front) for index, front in _places(argv, flag)]
    return values[-1] if values else None


def _places(argv: list[str], flag: str) -> list[tuple[int, str]]:
    """Returns the places of the words with a flag's value, and what is before it in them: `--flag=`, or nothing."""
    places = []
    for index, word in enumerate(argv):
        name, equals, _ = word.lstrip("-").partition("=")
        if word.startswith("-") and name == flag:
            if equals:
                places.append((index, word[: word.index("=") + 1]))
            elif index + 1 < len(argv):
                places.append((index + 1, ""))
    return places


def _leaves(config: Config, prefix: str = "") -> list[str]:
    keys = []
    for name, value in config.items():
        keys += _leaves(value, f"{prefix}{name}.") if isinstance(value, ConfigDict) else [prefix + name]
    return keys


def default_workdir(text: str) -> Path:
    """Returns runs/<name of the config file and its arguments>."""
    file, _, arguments = text.partition(":")
    return Path("runs") / "-".join(filter(None, (Path(file).stem, re.sub(r"[^\w=.]+", "-", arguments))))


def flag_of(word: str) -> str:
    """The flag that a word without dashes stands for."""
    return f"--{shortened(word)}" if "=" in word else "--NAME=VALUE in one word, such as --workdir=runs/x"
