"""What config files read: the arguments behind the colon of `--config=file.py:name=value`."""

from collections.abc import Container
from typing import Any

from ml_collections import ConfigDict

from jaxprune.errors import UserError, unknown
from jaxprune.text import split_items

# An ml_collections.ConfigDict; what its keys hold is not known to a type checker.
Config = Any


# In place of arguments: asks a config for those that it understands, which end its reading as an `Arguments`.
LIST_ARGUMENTS = "?"


class Arguments(Exception):
    """The arguments that a config understands, with their defaults: `values`."""

    def __init__(self, values: dict[str, Any]):
        super().__init__(", ".join(values))
        self.values = values


def parse_arg(arg: str | None, **defaults: Any) -> Config:
    """Reads what follows the colon of `--config=file.py:size=large,epochs=300`.

    Args:
      arg: comma-separated `name=value`; a bare name sets a flag. `smoke` is always known.
      defaults: the names that are understood, with the value each has by default; a value takes the type of
        its default.

    Raises:
      UserError: a name is not understood, or a value does not have its default's type.
    """
    values: dict[str, Any] = {"smoke": False, **defaults}
    if arg == LIST_ARGUMENTS:
        raise Arguments(values)
    for name, text in split_items(arg or ""):
        if name not in values:
            raise renamed("argument", name, values) or unknown("config argument", name, values)
        values[name] = _typed(name, "true" if text is None else text, values[name])
    return ConfigDict(values)


# What `init` meant in version 0.1, by what a config is for.
_INIT = ("run", "model.weights", "weights", "label_model")


def renamed(what: str, name: str, known: Container[str]) -> UserError | None:
    """Returns the error for a key of version 0.1 that has another name now, or None if it is none."""
    new = [key for key in _INIT if key in known]
    if name != "init" or not new:
        return None
    return UserError(f"The {what} init is called {' or '.join(new)} now: write that.")


def _typed(name: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        if text.lower() in ("true", "1", "yes"):
            return True
        if text.lower() in ("false", "0", "no"):
            return False
        raise UserError(f"Config argument {name}={text} is neither true nor false.")
    try:
        return type(default)(text)
    except ValueError as error:
        raise UserError(f"Config argument {name}={text} is not of the type {type(default).__name__}.") from error
