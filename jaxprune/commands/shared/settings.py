"""Declares the settings of a command: each states its value, its help and its bounds, once.

A command's settings are a frozen dataclass, `class Settings`, and a group of them (`config.data`) is another:

    keep_rate: float = number(0.7, "share of all patches that a step keeps", above=0, at_most=1)
    data: Data = Data(source="")

From it come the `ml_collections.ConfigDict` that configs change, the checks of a config, and its help.
"""

import dataclasses
import inspect
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from ml_collections import ConfigDict

from jaxprune.config import Config
from jaxprune.errors import PLACE, UserError, nearest, quoted, shortened, unknown
from jaxprune.number_bounds import Bounds
from jaxprune.weights.hub import is_remote

# The value of a key that a config may have, and does not have by default.
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()

# Yields what is wrong with a value, from (its dotted key, the value, its declaration, its default).
Check = Callable[[str, Any, dataclasses.Field, Any], Iterable[str]]


def setting(default: Any, about: str = "", refuse: Callable[[Any], Any] | None = None, *, free: bool = False) -> Any:
    """Declares a setting.

    Args:
      default: its value in a config that does not change it.
      about: its help.
      refuse: called with a value, raises `UserError` if it cannot be used.
      free: whether the recipe of a paper may leave it out.
    """
    check = None if refuse is None else lambda key, value, *_: refused(lambda: refuse(value))
    return _declared(default, about, check, free=free)


def number(
    default: Any,
    about: str = "",
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    example: Any = None,
    free: bool = False,
) -> Any:
    """Declares a number, or a tuple of numbers, by the setting's type; `int` means whole numbers.

    Args:
      default, about, free: as for `setting`.
      at_least, above, at_most, below: the ends of the allowed interval.
      example: a value that can be used; by default the default.
    """
    bounds = Bounds(at_least, above, at_most, below)

    def check(key: str, value: Any, field: dataclasses.Field, usual: Any) -> Iterator[str]:
        usable = usual if usual is not ABSENT and not bounds.problem(key, usual, field.type, None) else None
        if problem := bounds.problem(key, value, field.type, usable if example is None else example):
            yield problem

    return _declared(default, about, check, free=free)


def like(settings: type, name: str, about: str) -> Any:
    """Declares a number of a dataclass of the library (`number_bounds.bounded`), with its default and its bounds."""
    field = {field.name: field for field in dataclasses.fields(settings)}[name]
    return number(field.default, about, **field.metadata["bounds"]._asdict(), example=field.metadata["example"])


def choice(
    default: Any,
    about: str,
    names: Iterable[str] | Callable[[], Iterable[str]],
    *,
    optional: bool = False,
    free: bool = False,
) -> Any:
    """Declares a text that is one of `names`, or empty if `optional`; `names` may be a function that returns them."""

    def check(key: str, value: Any, *_: Any) -> Iterator[str]:
        allowed = tuple(names() if callable(names) else names)
        if value not in allowed and (value or not optional):
            yield f"{key}={quoted(value)} cannot be used.{nearest(value, allowed)} Choose one of: {', '.join(allowed)}."

    return _declared(default, about, check, free=free)


def path(default: Any, about: str = "", kind: str = "run directory or file", besides: Sequence[str] = ()) -> Any:
    """Declares a file or directory (`kind`) that has to exist, unless empty, remote, or a word of `besides`."""

    def check(key: str, value: Any, *_: Any) -> Iterator[str]:
        elsewhere = not value or value in besides or is_remote(value)
        # Unlike `Path.exists`, this does not raise where a name is too long for a file.
        if not elsewhere and not os.path.exists(os.path.expanduser(str(value))):
            yield f"There is no {kind} {shortened(value, PLACE)}: check {key}."

    return _declared(default, about, check, free=True)


def _declared(default: Any, about: str, check: Check | None, *, free: bool = False) -> Any:
    return dataclasses.field(default=default, metadata={"about": about, "check": check, "free": free})


@typing.dataclass_transform(frozen_default=True)  # whatever is assigned to a setting declares its default
def record(*, recipe: bool = False, is_open: bool = False) -> Callable[[type], Any]:
    """Makes a class a record of settings.

    Its static methods `check(values, prefix)` and `missing(values)` yield the problems that no setting has by itself:
    those of several settings, and settings that are required unless an enclosing command fills them in.

    Args:
      recipe: whether the recipe of a paper has to state all settings that the class itself declares.
      is_open: whether a config may have other keys beside them, such as the arguments of a network. A config gives such
        a group as a whole.
    """

    def made(cls: Any) -> Any:
        cls.recipe_keys = {*getattr(cls, "recipe_keys", ()), *(inspect.get_annotations(cls) if recipe else ())}
        cls.is_open = is_open or getattr(cls, "is_open", False)
        return dataclasses.dataclass(frozen=True)(cls)

    return made


def refused(make: Callable[[], Any]) -> list[str]:
    """Returns the message of the `UserError` that a call raises, if any."""
    try:
        make()
    except UserError as error:
        return [str(error)]
    return []


@record()
class Settings:
    """The settings of every command. The class `Settings` of a command extends them."""

    seed: int = number(0, "seed of all randomness", at_least=-(2**31), below=2**32)  # JAX keys have 32 bits
    workdir: str = setting("", "empty: runs/<name of the config file>", free=True)

    TRAINS: ClassVar[bool] = False  # whether the command records its config, and resumes after an interruption
    TOGETHER: ClassVar[bool] = False  # whether it can run on several processes
    # The keys that its help lists first; a config need not have all of them.
    FIRST: ClassVar[tuple[str, ...]] = (
        *("run", "model.weights", "model.name", "data.source", "data.path", "data.eval_split"),
        *("num_images", "img_size", "batch_size", "workdir"),
    )

    @classmethod
    def defaults(cls, **changes: Any) -> Config:
        """Returns the config of the command with its defaults, except for `changes`.

        Raises:
          UserError: a change has an unknown key.
        """
        return cls._config(changes, strict=False)

    @classmethod
    def recipe(cls, **values: Any) -> Config:
        """Returns the config of a paper's run, whose every number is among `values`: none comes from the defaults.

        Raises:
          UserError: a value is missing, or a key is unknown.
        """
        return cls._config(values, strict=True)

    @classmethod
    def extra_groups(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The groups that a config has because of its other values, as records by key."""
        return {}

    @classmethod
    def _config(cls, changes: Mapping[str, Any], *, strict: bool) -> Config:
        task = cls.__module__.removesuffix(".settings").rpartition(".")[2]
        values = _filled(cls(), changes, "config", strict)
        extra = {name: _filled(group, {}, name, strict) for name, group in cls.extra_groups(values).items()}
        return ConfigDict({"task": task, **extra, **values})


def _filled(group: Any, changes: Mapping[str, Any], key: str, strict: bool) -> dict[str, Any]:
    """Returns the values of a group: its defaults, with changes. An open group is not mixed from both."""
    fields = {field.name: field for field in dataclasses.fields(group)}
    for name in changes:
        if name not in fields and not group.is_open and not is_config(changes[name]):
            raise unknown(f"key of {key}", name, fields)
    is_whole = group.is_open and bool(changes)
    required = set(fields) if is_whole else group.recipe_keys if strict else ()
    values, lacking = dict(changes), []
    for name, field in fields.items():
        default = field.default if is_whole else getattr(group, name)
        if dataclasses.is_dataclass(default):
            values[name] = _filled(default, changes.get(name, {}), f"{key}.{name}", strict)
        elif name not in changes and default is not ABSENT:
            if name in required and not field.metadata["free"]:
                lacking.append(name)
            values[name] = default
    if lacking:
        raise UserError(f"{key} lacks {', '.join(lacking)}: state every one of its values.")
    return values


def is_config(value: Any) -> bool:
    """Whether a value of a config is the config of another command."""
    return hasattr(value, "items") and "task" in value


class _Leaf(NamedTuple):
    """A value of a config, with its declaration and its default if it has them.

    Of an open group, only the class has defaults: a key that a config leaves out has that of the network.
    """

    key: str
    value: Any
    field: dataclasses.Field | None
    default: Any


def _groups(group: Any, values: Config, prefix: str) -> Iterator[tuple[str, Any, Config]]:
    """Yields (prefix, record, values) of a group and of all groups in it; no record for undeclared values."""
    yield prefix, group, values
    further = group.extra_groups(values) if isinstance(group, Settings) else {}
    for name, value in values.items():
        if isinstance(value, ConfigDict) and not is_config(value):
            yield from _groups(further.get(name, getattr(group, name, None)), value, f"{prefix}{name}.")


def _leaves(group: Any, values: Config, prefix: str) -> Iterator[_Leaf]:
    for inner, declared, contents in _groups(group, values, prefix):
        is_record = dataclasses.is_dataclass(declared)
        fields = {field.name: field for field in dataclasses.fields(declared)} if is_record else {}
        for name, value in contents.items():
            if not isinstance(value, ConfigDict):
                field = fields.get(name)
                default = ABSENT if field is None else field.default if declared.is_open else getattr(declared, name)
                yield _Leaf(f"{inner}{name}", value, field, default)


def problems(settings: Settings, config: Config, prefix: str) -> list[str]:
    """Returns what is wrong with the config of a command, one sentence each; without the configs of others inside it.

    What several settings have to do with each other is checked with defaults in place of values that are wrong alone.
    """
    sentences, replaced = [], {}
    for key, value, field, default in _leaves(settings, config, ""):
        check = field and field.metadata["check"]
        place = f"{prefix}{key}"
        if lines := _no_texts(place, value, field) or ([*check(place, value, field, default)] if check else []):
            sentences += lines
            replaced |= {} if default is ABSENT else {key: default}
    usable: Any = ConfigDict(config.to_dict())
    with usable.ignore_type():
        usable.update_from_flattened_dict(replaced)
    groups = _groups(settings, usable, prefix)
    return [*sentences, *(line for inner, group, values in groups for line in _all(group, "check", values, inner))]


def _no_texts(key: str, value: Any, field: dataclasses.Field | None) -> list[str]:
    """What is wrong with a tuple of texts that holds something else, as the command line allows."""
    if field is None or field.type != tuple[str, ...] or all(isinstance(element, str) for element in value):
        return []
    return [f'{key}={quoted(value)} must be texts: put quotation marks around each, as in \'("one", "two")\'.']


def missing(settings: Settings, config: Config) -> list[str]:
    """Returns what a config lacks unless an enclosing command fills it in, one sentence each."""
    return list(_all(settings, "missing", config))


def _all(group: Any, method: str, *arguments: Any) -> Iterator[str]:
    for cls in reversed(type(group).__mro__):
        if method in vars(cls):
            yield from getattr(cls, method)(*arguments)


def described(settings: Settings, config: Config, prefix: str) -> list[tuple[str, Any, str]]:
    """Returns (dotted key, value, help) of a config's own settings."""
    leaves = _leaves(settings, config, prefix)
    return [(leaf.key, leaf.value, leaf.field.metadata["about"] if leaf.field else "") for leaf in leaves]


def declared_defaults(settings: Settings, config: Config, prefix: str) -> dict[str, Any]:
    """Returns {dotted key: default} of a config's own settings that have one."""
    leaves = _leaves(settings, config, prefix)
    return {leaf.key: leaf.default for leaf in leaves if leaf.default is not ABSENT}
