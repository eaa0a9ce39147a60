"""Finds config files, the bundled ones and others, and loads them."""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune import config_imports
from jaxprune.config import LIST_ARGUMENTS, Arguments, Config
from jaxprune.errors import UserError, nearest, quoted


def configs() -> list[str]:
    """Returns the names of the bundled configs."""
    paths = {path.relative_to(root) for root in _roots() for path in root.rglob("*.py")}
    return sorted(f"configs/{path}" for path in paths if not path.name.startswith("_"))


def _roots() -> list[Path]:
    # An installed wheel has the configs inside the package; a checkout has them next to it.
    package = Path(__file__).parent
    return [root for root in (package / "configs", package.parent / "configs") if root.is_dir()]


def config_path(file: str) -> Path:
    """Finds a config file: at that path, or among the bundled ones.

    Raises:
      UserError: there is no such file; the message suggests the nearest name.
    """
    for path in (Path(file), *(root / file.removeprefix("configs/") for root in _roots())):
        if path.is_file():
            return path
    bundled = configs()
    raise UserError(f"There is no config file {file}.{nearest(file, bundled)} There are: {', '.join(bundled)}.")


def load_config(text: str) -> Config:
    """Returns the config of `FILE.py:arguments`.

    It may import the helpers of the bundled configs (`_small`), and what `config_imports` finds.

    Raises:
      UserError: there is no such file, its function takes no arguments, or it returns no config.
    """
    file, _, arguments = text.partition(":")
    path = config_path(file)
    get_config = function_of(path)
    if takes_argument(get_config):
        config = get_config(arguments)
    elif arguments in ("", LIST_ARGUMENTS):
        config = get_config()
    else:
        raise UserError(
            f"The argument {quoted(arguments)} cannot be passed: get_config() of {path} takes none. Leave it out, or "
            "write def get_config(arg=None) there."
        )
    if not isinstance(config, ConfigDict):
        raise UserError(
            f"get_config() of {path} returns {quoted(config)} and no config: return one, as in configs/evaluate.py."
        )
    return config.lock()


def function_of(path: Path) -> Callable[..., Any]:
    """Returns `get_config` of a config file."""
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file: a config is a file with get_config().")
    sys.path += [str(root) for root in _roots() if str(root) not in sys.path]
    config_imports.allow(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise UserError(
            f"{path} has no get_config(): a config is a file with that function, as in configs/evaluate.py."
        )
    return module.get_config


def takes_argument(get_config: Callable[..., Any]) -> bool:
    """Whether `get_config` of a config file takes what is behind the colon."""
    return bool(inspect.signature(get_config).parameters)


def arguments(file: str) -> dict[str, Any]:
    """Returns the arguments that a config accepts, with their defaults."""
    try:
        load_config(f"{file}:{LIST_ARGUMENTS}")
    except Arguments as accepted:
        return accepted.values
    return {}  # the config parses its arguments itself
