"""One step of a plan, `At(layer, method, amount)`."""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxprune import errors, plugins
from jaxprune.errors import UserError, unknown
from jaxprune.nn.restore import RESTORES
from jaxprune.reduction.parts.base import Reducer
from jaxprune.reduction.parts.find_method import method_class, method_name, shown_name
from jaxprune.reduction.parts.plan_text import INPUT
from jaxprune.reduction.parts.step_sizes import Amount, Count, Rate, Removal, plain, whole

POSITIONS = ("mean", "kept")
AMOUNTS = ("keep_rate", "num_keep", "r", "position", "restore", "multiple_of")  # what every method takes in a step


class At:
    """One step of a plan: a method at a block, with one amount.

    >>> At(3, "topk", keep_rate=0.7)
    At(3, 'topk', keep_rate=0.7)

    Args:
      layer: the block that reduces, from 0; "input" means before patch embedding.
      method: a module of `jaxprune.reduction`, the name of another package's method, or a subclass of `Reducer`.
      keep_rate: fraction of all patches of the image that the step keeps.
      num_keep: number of patches that it keeps.
      r: number of incoming rows that it removes.
      position: the position of a merged row: the size-weighted "mean" of its rows, or that of the row "kept".
      restore: what becomes of the rows that the step drops, see `Plan`.
      multiple_of: the rows after the step, with the prefix, are rounded up to a multiple of this, see `Plan`.
      options: the method's own options.

    Raises:
      UserError: there is no such method or place, or not exactly one amount.
    """

    def __init__(
        self,
        layer: int | str,
        method: str | type[Reducer],
        *,
        keep_rate: float | int | None = None,
        num_keep: int | None = None,
        r: int | None = None,
        position: str = "mean",
        restore: str = "zero",
        multiple_of: int = 1,
        **options: Any,
    ):
        amounts = {"keep_rate": (keep_rate, Rate), "num_keep": (num_keep, Count), "r": (r, Removal)}
        amounts = {name: pair for name, pair in amounts.items() if pair[0] is not None}
        if len(amounts) != 1:
            raise UserError(
                f"A step takes one amount, keep_rate=, num_keep= or r=, and {shown_name(method_class(method))} at "
                f"{layer} has {' and '.join(amounts) or 'none'}: write for example keep_rate=0.7."
            )
        ((value, kind),) = amounts.values()
        self._fill(layer, method_class(method), kind(value), position, restore, multiple_of, options)

    @classmethod
    def of(
        cls,
        layer: int | str,
        method: type[Reducer],
        amount: Amount,
        position: str,
        restore: str,
        multiple_of: int,
        options: Iterable[tuple],
    ) -> "At":
        """Makes a step from an `Amount`."""
        step = cls.__new__(cls)
        step._fill(layer, method, amount, position, restore, multiple_of, dict(options))
        return step

    def _fill(
        self,
        layer: int | str,
        cls: type[Reducer],
        amount: Amount,
        position: str,
        restore: str,
        multiple_of: int,
        options: dict[str, Any],
    ) -> None:
        entrance, method = cls.where == "embed", shown_name(cls)
        if isinstance(layer, str) and layer != INPUT:
            raise UserError(f"{method} at {layer!r}: a step is at the number of a block, or at {INPUT!r}.")
        if (layer == INPUT) != entrance:
            remedy = f"use At({INPUT!r}, …)" if entrance else "give the number of a block"
            raise UserError(f"{method} cannot work at {layer!r}: {remedy}.")
        if entrance and isinstance(amount, Removal):
            raise UserError(f"{method} prunes once, before the first block: use keep_rate or num_keep instead of r.")
        if not isinstance(layer, str) and whole("block", layer) < 0:
            raise UserError(f"reduction_loc {layer} is outside the network: blocks count from 0.")
        if position not in POSITIONS:
            raise unknown("position of merged rows", position, POSITIONS)
        if restore not in RESTORES:
            raise unknown("restore of dropped rows", restore, RESTORES)
        self.layer: int | str = layer if isinstance(layer, str) else int(layer)
        self.method, self.reducer_class, self.amount, self.position = method, cls, amount, position
        self.restore, self.multiple_of = restore, checked_multiple(multiple_of)
        check_options(cls, options, AMOUNTS)
        self.options = stated(cls, options)

    def changed(self, **values: Any) -> "At":
        """The same step with another `layer`, `amount` or `options`."""
        values = {"layer": self.layer, "amount": self.amount, "options": self.options, **values}
        rows = {"position": self.position, "restore": self.restore, "multiple_of": self.multiple_of}
        return At.of(method=self.reducer_class, **rows, **values)

    def _key(self) -> tuple:
        return (self.layer, self.reducer_class, self.amount, *row_settings(self).items(), self.options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, At) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def settings(self) -> dict[str, Any]:
        """The amount and the options by name, without those at their default."""
        return {self.amount.name: self.amount.value, **row_settings(self), **dict(self.options)}

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings().items())
        return f"At({self.layer!r}, {as_argument(self.reducer_class)}{settings})"


def row_settings(plan: Any) -> dict[str, str | int]:
    """The `position`, `restore` and `multiple_of` of a step or a plan by name, without those at their default."""
    values: dict[str, tuple[str | int, str | int]] = {
        "position": (plan.position, POSITIONS[0]),
        "restore": (plan.restore, RESTORES[0]),
        "multiple_of": (plan.multiple_of, 1),
    }
    return {name: value for name, (value, default) in values.items() if value != default}


def checked_multiple(multiple_of: Any) -> int:
    """Returns what rows are to be a multiple of.

    Raises:
      UserError: it is not a positive whole number.
    """
    if (multiple := whole("multiple_of", multiple_of)) < 1:
        raise UserError(f"multiple_of {multiple} is not a number of rows: use one such as 8, or 1 for any number.")
    return multiple


def check_options(cls: type[Reducer], options: Iterable[str], common: Iterable[str]) -> None:
    """Checks that a method has these options.

    Args:
      common: what a step or a plan of any method takes besides.

    Raises:
      UserError: it has no such option; the message lists those that there are.
    """
    parameters = plugins.parameters(cls) - {"step", "rngs", "scorer"}
    for option in options:
        if option not in parameters:
            names = [*common, *sorted(parameters)]
            raise UserError(
                f"{shown_name(cls)} has no option {errors.quoted(option)}.{errors.nearest(option, names)} Its plans "
                f"take {', '.join(names)}."
            )


def stated(cls: type[Reducer] | None, options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Options in the order of a plan, with the one that says whether the method has parameters."""
    form = getattr(cls, "off_the_shelf", None)
    values = dict(options) if form is None else {form: True, **options}
    return tuple((name, plain(value)) for name, value in sorted(values.items()))


def trained(cls: type[Reducer] | None, options: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """The same options for the trained form of a method that also works off the shelf."""
    form = getattr(cls, "off_the_shelf", None)
    return stated(cls, {**dict(options), form: False} if form else dict(options))


def as_argument(cls: type[Reducer]) -> str:
    """A method as an argument of `Plan`: its name, or its class."""
    name = method_name(cls)
    return cls.__name__ if name is None else repr(name)


def check_first(at: At) -> None:
    """Raises a `UserError` for a step at block 0 that reads the block before."""
    if at.reducer_class.where == "before" and at.reducer_class.needs and at.layer == 0:
        raise UserError(f"{at.method} reads the attention of the block before, so block 0 cannot reduce: use 1.")
