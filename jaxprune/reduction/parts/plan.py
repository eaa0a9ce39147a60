"""Token-reduction plans: a `Plan` is a sequence of steps, `At(layer, method, amount)`."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxprune.errors import UserError
from jaxprune.reduction.parts import plan_text
from jaxprune.reduction.parts.at import (
    AMOUNTS,
    At,
    as_argument,
    check_first,
    check_options,
    checked_multiple,
    row_settings,
    stated,
    trained,
)
from jaxprune.reduction.parts.base import Reducer
from jaxprune.reduction.parts.find_method import method_class, method_name, shown_name
from jaxprune.reduction.parts.plan_text import INPUT, StepText
from jaxprune.reduction.parts.step_sizes import Amount, Count, Rate, Removal, falling, number, plain, whole

_DEEPEST = 10_000  # blocks of a network, at most
_KEEP_RATE = 0.7


def quarters(depth: int) -> tuple[int, ...]:
    """Returns the blocks after a quarter, a half and three quarters of a network; fewer in one of under four blocks.

    >>> quarters(12), quarters(24), quarters(2)
    ((3, 6, 9), (6, 12, 18), (1,))
    """
    return tuple(sorted({depth * part // 4 for part in (1, 2, 3)} - {0}))


class Plan:
    """A token-reduction plan; hashable, so it can be a static argument of a jitted function.

    It is built from steps, or from arguments for the common case: one method at several blocks. Configs and run cards
    hold it as text (`Plan.from_text`, `Plan.text`).

    >>> Plan("topk", keep_rate=0.5, reduction_loc=(3, 6)).text
    'topk@3:keep_rate=0.5+topk@6:keep_rate=0.25'
    >>> Plan(steps=(At(3, "topk", keep_rate=0.7), At(6, "tome", r=8))).text
    'topk@3:keep_rate=0.7+tome@6:r=8'
    >>> Plan("tome", r=8, reduction_loc=(0, 1, 2, 3, 4, 5, 6, 7)).text
    'tome@0-7:r=8'

    Args:
      method: a module of `jaxprune.reduction`, the name of another package's method, or a subclass of `Reducer`.
      keep_rate: a single rate r keeps `int(p * r**s)` of the p patches at step s = 1, 2, …; several are each step's
        rate relative to p.
      reduction_loc: the blocks that reduce, from 0; by default those after a quarter, a half and three quarters of the
        network, (3, 6, 9) of 12. "from_scores" works before the first.
      num_keep: absolute counts, one per step, instead of `keep_rate`.
      r: number of tokens that each block removes while any are left, instead of `keep_rate`: one number for all blocks,
        or for those of `reduction_loc`; or several, one for each of those, else from the first block on.
      inflection: tilts a single `r` linearly over the depth: -1 goes from 2r to 0, 1 from 0 to 2r (ToMe's schedules).
      steps: the steps of a plan that mixes methods or amounts, instead of all of these.
      position: the position of a merged row, see `At`.
      restore: what becomes of dropped rows. "zero": nothing, and maps that are made dense have zeros there. "last":
        maps of all depths have the value with which a row left, and nothing else reads it, as in SViT (Liu et al.,
        2024). "fuse": they also join the others before the last block, as in Token Cropr (Bergner et al., 2025).
        Where rows only skip work, their value stays in any case.
      multiple_of: rounds the number of rows after each step, with the prefix, up to a multiple such as 8, since
        accelerators compute rows in groups. Where rows only skip work, it changes nothing.
      options: the method's own options.

    Raises:
      UserError: the method, a rate, a count or a location is invalid.
    """

    def __init__(
        self,
        method: str | type[Reducer] | None = None,
        keep_rate: float | int | Sequence[float | int] | np.ndarray = _KEEP_RATE,
        reduction_loc: int | Sequence[int] | np.ndarray | None = None,
        *,
        num_keep: int | Sequence[int] | np.ndarray | None = None,
        r: int | Sequence[int] | np.ndarray | None = None,
        inflection: float | int = 0.0,
        steps: Iterable[At] | None = None,
        position: str = "mean",
        restore: str = "zero",
        multiple_of: int = 1,
        **options: Any,
    ):
        if (method is None) == (steps is None):
            raise UserError(
                "A plan is a method with its amounts, or steps=(At(…), …), and "
                + (
                    f"keep_rate={keep_rate}, reduction_loc={reduction_loc} have no method: write "
                    "Plan('topk', keep_rate=0.7, reduction_loc=(3, 6, 9))."
                    if method is None
                    else f"{method!r} and steps={steps!r} are both set: give only one of them."
                )
            )
        keep_rate, reduction_loc, num_keep, r = map(plain, (keep_rate, reduction_loc, num_keep, r))
        self.reducer_class: Any = None if method is None else method_class(method)
        self.method: Any = None if method is None else shown_name(self.reducer_class)
        self.position, self.restore, self.multiple_of = position, restore, checked_multiple(multiple_of)
        if method is not None:
            check_options(self.reducer_class, options, (*AMOUNTS, "reduction_loc", "inflection"))
        self.options = stated(self.reducer_class, options)
        self.inflection = float(number("inflection", inflection))
        self.num_keep = None if num_keep is None else _whole_numbers("num_keep", num_keep)
        self.r: Any = None if r is None else _whole_numbers("r", r) if isinstance(r, tuple) else whole("r", r)
        if isinstance(keep_rate, tuple):
            self.keep_rate: Any = tuple(float(number("keep_rate", rate)) for rate in keep_rate)
        else:
            self.keep_rate = float(number("keep_rate", keep_rate))
        if method is None:
            self._check_steps_alone(options, reduction_loc)
        elif self.num_keep is not None and self.keep_rate != _KEEP_RATE:
            raise UserError(
                f"A plan takes num_keep or keep_rate, not both: leave keep_rate={self.keep_rate} or "
                f"num_keep={self.num_keep} out."
            )
        elif self.inflection and self.r is None:
            raise UserError(f"inflection={self.inflection} tilts r over the blocks, and there is no r: leave it out.")
        if self.r is not None:
            self._check_r()
            self.r = self.r if reduction_loc is None else self._removed_at(_blocks(reduction_loc))
        self.reduction_loc: tuple[int, ...] = ()
        self._quarters = (
            False  # whether it reduces at the `quarters` of any network; `steps` are those of twelve blocks
        )
        if steps is not None:
            self.steps = _checked_order(tuple(steps) if isinstance(steps, Iterable) else (steps,))
        elif isinstance(self.r, int):
            self.steps = ()  # they depend on the depth of the network, see `steps_for`
        else:
            self.steps = self._common_steps(reduction_loc)
        self._check_methods()

    def _step(self, layer: int | str, amount: Amount) -> At:
        return At.of(layer, self.reducer_class, amount, self.position, self.restore, self.multiple_of, self.options)

    def _common_steps(self, reduction_loc: int | tuple[int, ...] | None) -> tuple[At, ...]:
        if self.r is not None:
            return tuple(self._step(layer, Removal(removed)) for layer, removed in enumerate(self.r) if removed)
        if self.reducer_class.where == "embed":
            if reduction_loc not in (None, (0,), 0):
                raise UserError(
                    f"{self.method} prunes before the first block, and reduction_loc is {reduction_loc}: leave it out."
                )
            self.reduction_loc = (0,)
            return tuple(self._step(INPUT, amount) for amount in self._amounts(1))
        self._quarters = reduction_loc is None
        self.reduction_loc = quarters(12) if reduction_loc is None else _blocks(reduction_loc)
        amounts = self._amounts(len(self.reduction_loc))
        return tuple(self._step(layer, amount) for layer, amount in zip(self.reduction_loc, amounts, strict=True))

    def _amounts(self, count: int) -> tuple[Amount, ...]:
        name = "keep_rate" if self.num_keep is None else "num_keep"
        values = getattr(self, name)
        if not isinstance(values, tuple):
            Rate(values)
            values = tuple(values ** (s + 1) for s in range(count))
        amounts: tuple[Amount, ...] = tuple((Count if self.num_keep is not None else Rate)(v) for v in values)
        if len(values) != count:
            raise UserError(
                f"{name} {values} has {len(values)} values for {count} locations {self.reduction_loc}: give one per "
                "location."
            )
        if (lowered := falling(amounts)) is not None:
            raise UserError(f"{name} {values} rises, and tokens never come back: use {lowered}.")
        return amounts

    def _removed_at(self, blocks: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers of tokens that blocks remove, from the first on, where `r` is of these blocks alone."""
        if self.inflection:
            raise UserError(
                f"inflection tilts r over all blocks, and reduction_loc is {blocks}: leave one of them out."
            )
        if blocks[-1] >= _DEEPEST:
            raise UserError(f"reduction_loc names block {blocks[-1]}: no network has {_DEEPEST} blocks.")
        removed = self.r if isinstance(self.r, tuple) else (self.r,) * len(blocks)
        if len(removed) != len(blocks):
            raise UserError(
                f"r {self.r} has {len(removed)} values for {len(blocks)} blocks {blocks}: give one a block."
            )
        by_block = dict(zip(blocks, removed, strict=True))
        return tuple(by_block.get(block, 0) for block in range(blocks[-1] + 1))

    def _check_steps_alone(self, options: Iterable[str], reduction_loc: Any) -> None:
        """Checks that nothing stands beside `steps`, which say everything."""
        beside = {
            "keep_rate": self.keep_rate != _KEEP_RATE,
            "reduction_loc": reduction_loc is not None,
            "num_keep": self.num_keep is not None,
            "r": self.r is not None,
            "inflection": bool(self.inflection),
        }
        if named := [*(name for name, is_set in beside.items() if is_set), *row_settings(self), *options]:
            raise UserError(
                f"{', '.join(named)}: options go into the steps, and so do amounts and places, "
                "At(3, 'topk', keep_rate=0.7, …)."
            )

    def _check_r(self) -> None:
        if self.num_keep is not None:
            raise UserError("A plan takes r or num_keep, not both: leave one out.")
        if self.keep_rate != _KEEP_RATE:
            raise UserError(
                f"A plan takes r or keep_rate, not both: leave keep_rate={self.keep_rate} or r={self.r} out."
            )
        for removed in self.r if isinstance(self.r, tuple) else (self.r,):
            Removal(removed)
        if not -1.0 <= self.inflection <= 1.0:
            nearest = min(max(self.inflection, -1.0), 1.0) if self.inflection == self.inflection else 0.0
            raise UserError(f"inflection {self.inflection} is outside [-1, 1]: use {nearest}.")
        if self.inflection and isinstance(self.r, tuple):
            raise UserError(f"inflection tilts a single r, and r is {self.r}: leave one of the two out.")
        if self.reducer_class.where == "embed":
            raise UserError(f"{self.method} prunes once, before the first block: use keep_rate or num_keep, not r.")

    def _check_methods(self) -> None:
        steps = self.steps or ([] if self.reducer_class is None else [self._step(1, Removal(0))])
        for at in steps:
            check_first(at)
        for cls in dict.fromkeys(at.reducer_class for at in steps):
            cls.check(self)

    @property
    def at_input(self) -> At | None:
        """The step before the first block, where a scorer drops patches, or None."""
        return next((at for at in self.steps if at.layer == INPUT), None)

    @property
    def reducer_classes(self) -> tuple[type[Reducer], ...]:
        """The classes of its methods, each once, also of a plan by `r`, whose steps depend on the network's depth."""
        common = () if self.reducer_class is None else (self.reducer_class,)
        return tuple(dict.fromkeys((*(at.reducer_class for at in self.steps), *common)))

    @property
    def has_parameters(self) -> bool:
        """Whether one of its methods learns parameters, with the options that the plan gives it."""
        common = [] if self.reducer_class is None else [(self.reducer_class, self.options)]
        methods = [*common, *((at.reducer_class, at.options) for at in self.steps)]
        return any(cls.has_parameters(dict(options)) for cls, options in methods)

    def steps_for(self, depth: int) -> tuple[At, ...]:
        """The steps in a network of `depth` blocks."""
        if self._quarters:
            return self._at_quarters(depth)
        if not isinstance(self.r, int):
            return self.steps
        by_removal = tuple(
            self._step(layer, Removal(removed)) for layer, removed in enumerate(self.removed(depth)) if removed
        )
        for at in by_removal[:1]:
            check_first(at)
        return self.steps + by_removal

    def _at_quarters(self, depth: int) -> tuple[At, ...]:
        front = tuple(at for at in self.steps if at.layer == INPUT)
        inside, places = self.steps[len(front) :], quarters(depth)
        if len(places) < len(inside) and (self.num_keep is not None or isinstance(self.keep_rate, tuple)):
            raise UserError(
                f"{self!r} has {len(inside)} steps, and {depth} blocks have no quarters: give reduction_loc."
            )
        return front + tuple(at.changed(layer=place) for place, at in zip(places, inside, strict=False))

    def behind(self, entrance: "Plan") -> "Plan":
        """Combines this plan, inside a network, with one at the network's input."""
        if not isinstance(self.r, int) and not self._quarters:
            return Plan(steps=entrance.steps + self.steps)
        plan = copy.copy(self)
        plan.steps = entrance.steps + self.steps
        return plan

    def removed(self, depth: int) -> tuple[int, ...]:
        """Number of tokens that each of `depth` blocks removes in a plan by `r`."""
        if isinstance(self.r, tuple):
            return self.r + (0,) * (depth - len(self.r))
        first = int(self.r * (1.0 - self.inflection))
        step = (2 * self.r - 2 * first) / max(depth - 1, 1)
        return tuple(int(first + step * layer) for layer in range(depth))

    def counts(self, num_patches: int) -> tuple[int, ...]:
        """Number of patches that each step keeps, for a plan by `keep_rate` or `num_keep`."""
        return tuple(at.amount.tokens(num_patches, num_patches) for at in self.steps)

    def rates(self, num_patches: int) -> tuple[float, ...]:
        """The keep rate of each step, relative to all patches, for a plan by `keep_rate` or `num_keep`."""
        return tuple(
            at.amount.rate if isinstance(at.amount, Rate) else at.amount.tokens(num_patches, num_patches) / num_patches
            for at in self.steps
        )

    @property
    def _entrance(self) -> "Plan | None":
        """The plan at the input that this one is behind, see `behind`; None where this one is alone."""
        at = self.at_input
        return None if at is None or self.method is None or at.reducer_class is self.reducer_class else Plan(steps=[at])

    def with_keep_rate(self, keep_rate: float) -> "Plan":
        """Returns the same plan with another rate; a step at the input, which this plan is behind, stays.

        Raises:
          UserError: it is not a plan by a single `keep_rate`.
        """
        if self.method is None or self.r is not None or self.num_keep is not None or isinstance(self.keep_rate, tuple):
            raise UserError(f"{self!r} has no single keep rate to change: write it as Plan('topk', keep_rate=0.7).")
        blocks = None if self._quarters else self.reduction_loc or None
        plan = Plan(self.reducer_class, keep_rate, blocks, **row_settings(self), **dict(self.options))
        return plan if self._entrance is None else plan.behind(self._entrance)

    def with_parameters(self) -> "Plan":
        """Returns the same plan with the trained form of methods that also work off the shelf."""
        plan = copy.copy(self)
        plan.options = trained(self.reducer_class, self.options)
        plan.steps = tuple(at.changed(options=trained(at.reducer_class, at.options)) for at in self.steps)
        return plan

    @property
    def text(self) -> str:
        """The plan as text, such as "topk@3:keep_rate=0.7+tome@6:r=8"; `Plan.from_text` reads it.

        Raises:
          UserError: a method has no name.
        """
        placed = [at for at in self.steps if at.layer == INPUT or not self._quarters]
        steps = [StepText(_name(at.reducer_class), at.layer, at.settings()) for at in placed]
        if isinstance(self.r, int) or self._quarters:
            steps.append(StepText(_name(self.reducer_class), None, self._settings()))
        return plan_text.write(steps)

    def _settings(self) -> dict[str, Any]:
        """The amount and the options of a common plan whose places depend on the network."""
        if isinstance(self.r, int):
            amount = {"r": self.r, **({"inflection": self.inflection} if self.inflection else {})}
        else:
            amount = {"keep_rate": self.keep_rate} if self.num_keep is None else {"num_keep": self.num_keep}
        return {**amount, **row_settings(self), **dict(self.options)}

    @classmethod
    def from_text(cls, text: str, **defaults: Any) -> "Plan":
        """Reads a plan: steps joined by "+", or the arguments of a common plan such as "tome:r=8".

        Args:
          defaults: arguments of a common plan that the text does not set.

        Raises:
          UserError: the text is not a plan.
        """
        steps = plan_text.read(text)
        if not steps and not defaults:
            return cls(steps=())  # the text of a plan that removes nothing
        *placed, last = steps or [StepText("", None, {})]
        inside = [At(step.layer, step.method, **step.settings) for step in placed if step.layer is not None]
        if last.layer is not None:
            return cls(steps=[*inside, At(last.layer, last.method, **last.settings)])
        # An amount in the text replaces the default one; r, and a method at the input, take no blocks.
        amounts = {"keep_rate", "num_keep", "r"}
        replaced = amounts if amounts & set(last.settings) else set()
        if "r" in last.settings or method_class(last.method).where == "embed":
            replaced = replaced | {"reduction_loc"}
        kept = {name: value for name, value in defaults.items() if name not in replaced}
        common = cls(last.method, **{**kept, **last.settings})
        return common.behind(cls(steps=inside)) if inside else common

    def _key(self) -> tuple:
        if not isinstance(self.r, int):
            return (self.steps, self._quarters)
        return (self.steps, self.reducer_class, self.r, self.inflection, *row_settings(self).items(), self.options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in {**row_settings(self), **dict(self.options)}.items())
        if self.method is None:
            return f"Plan(steps={self.steps!r})"
        if self.r is not None:
            amount = f"r={self.r}" + (f", inflection={self.inflection}" if self.inflection else "")
        else:
            amount = f"num_keep={self.num_keep}" if self.num_keep is not None else f"keep_rate={self.keep_rate}"
            amount += "" if self._quarters else f", reduction_loc={self.reduction_loc}"
        behind = "" if self._entrance is None else f".behind({self._entrance!r})"
        return f"Plan({as_argument(self.reducer_class)}, {amount}{options}){behind}"


def _name(cls: type[Reducer]) -> str:
    if (name := method_name(cls)) is None:
        raise UserError(
            f"{cls.__name__} has no name by which a plan as text could say it: call "
            f"jaxprune.reduction.register('my_method', {cls.__name__}) first, also where the text is read."
        )
    return name


def _blocks(reduction_loc: Any) -> tuple[int, ...]:
    blocks = _whole_numbers("reduction_loc", reduction_loc)
    rising = tuple(sorted(set(blocks)))
    if not blocks or blocks != rising:
        raise UserError(
            f"reduction_loc {blocks} must name at least one block, each once, in rising order: "
            f"use {rising or (3, 6, 9)}."
        )
    return blocks


def _whole_numbers(name: str, values: Any) -> tuple[int, ...]:
    return tuple(whole(name, value) for value in (values if isinstance(values, tuple) else (values,)))


def _checked_order(steps: tuple[At, ...]) -> tuple[At, ...]:
    for at in steps:
        if not isinstance(at, At):
            raise UserError(f"steps={steps!r}: every step is an At(…), such as At(3, 'topk', keep_rate=0.7).")
    places = [-1 if isinstance(at.layer, str) else at.layer for at in steps]
    if places != sorted(set(places)):
        raise UserError(
            f"The steps are at {', '.join(str(at.layer) for at in steps)}: name each block once, in rising order."
        )
    # A scorer at the input counts for itself; the amounts of steps inside are relative to all patches.
    lowered = falling(tuple(at.amount for at in steps if at.layer != INPUT))
    if lowered is not None:
        name = steps[0].amount.name
        raise UserError(f"{name} rises from step to step, and tokens never come back: use {lowered}.")
    return steps
