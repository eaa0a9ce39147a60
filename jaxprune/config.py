"""Parses the arguments after the colon of `--config=file.py:name=value`, for config files."""

from typing import Any

from ml_collections import ConfigDict

from jaxprune.errors import UserError, shortened, unknown
from jaxprune.text import parse_value, split_items

# An ml_collections.ConfigDict; type checkers do not know the types of its values.
Config = Any


# Passed in place of arguments, makes a config raise `Arguments` with those it accepts.
LIST_ARGUMENTS = "?"


class Arguments(Exception):
    """Carries the arguments that a config accepts, with their defaults, as `values`."""

    def __init__(self, values: dict[str, Any]):
        super().__init__(", ".join(values))
        self.values = values


def parse_arg(arg: str | None, **defaults: Any) -> Config:
    """Parses the text after the colon of `--config=file.py:size=large,epochs=300`.

    Args:
      arg: comma-separated `name=value`; a bare name sets a flag. `smoke` is always accepted.
      defaults: the accepted names with their default values; a value is converted to the type of its default.

    Raises:
      UserError: a name is unknown, or a value cannot be converted to the type of its default.
    """
    values: dict[str, Any] = {"smoke": False, **defaults}
    if arg == LIST_ARGUMENTS:
        raise Arguments(values)
    for name, text in split_items(arg or ""):
        if name not in values:
            raise unknown("config argument", name, values)
        values[name] = _typed(name, "true" if text is None else text, values[name])
    return ConfigDict(values)


def _typed(name: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        if text.lower() in ("true", "1", "yes"):
            return True
        if text.lower() in ("false", "0", "no"):
            return False
        raise UserError(f"Config argument {name}={shortened(text)} is neither true nor false.")
    if default is None or isinstance(default, tuple):
        value = parse_value(text)
        return (value,) if isinstance(default, tuple) and not isinstance(value, tuple) else value
    try:
        return type(default)(text)
    except ValueError as error:
        raise UserError(
            f"Config argument {name}={shortened(text)} is not of the type {type(default).__name__}."
        ) from error
