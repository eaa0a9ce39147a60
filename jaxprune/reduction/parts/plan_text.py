"""Plans as text: `topk@3:keep_rate=0.7+tome@6:r=8`, or the arguments of a common plan, `tome:r=8`."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxprune.errors import UserError
from jaxprune.text import format_items, parse_items

INPUT = "input"


class StepText(NamedTuple):
    """A step of a plan as plain values.

    Attributes:
      method: name of the method.
      layer: number of the block, or INPUT; None for a common plan, whose settings say where it reduces.
      settings: the amount and the options by name.
    """

    method: str
    layer: int | str | None
    settings: Mapping[str, Any]


def read(text: str) -> list[StepText]:
    """Reads the steps of a plan; a common plan is alone, or follows a step at the input.

    >>> read("topk@3:keep_rate=0.7")
    [StepText(method='topk', layer=3, settings={'keep_rate': 0.7})]

    Raises:
      UserError: the text is not a plan.
    """
    if not text.strip():
        return []
    # A "+" joins steps only if a method's name follows, so that 1e+3 stays a number.
    parts = [part.strip() for part in re.split(r"\+(?=\s*[A-Za-z_])", text.strip())]
    steps = [_step(part, text) for part in parts]
    common = len(steps) == 1 or [step.layer for step in steps] == [INPUT, None]
    for part, step in zip(parts, steps, strict=True):
        if step.layer is None and not common:
            raise _no_place(part, text)
    return steps


def _step(part: str, text: str) -> StepText:
    place, _, rest = part.partition(":")
    method, at, layer = place.partition("@")
    if at and not (layer == INPUT or layer.isdigit()):
        raise _no_place(part, text)
    number = None if not at else INPUT if layer == INPUT else int(layer)
    return StepText(method, number, parse_items(rest, f"plan {text!r}"))


def _no_place(part: str, text: str) -> UserError:
    return UserError(
        f"{part!r} in plan {text!r} names no place: write method@block:amount, such as topk@3:keep_rate=0.7."
    )


def write(steps: Iterable[StepText]) -> str:
    """Formats steps so that `read` returns equal ones.

    >>> write([StepText("tome", None, {"r": 8})])
    'tome:r=8'
    """
    return "+".join(map(_written, steps))


def _written(step: StepText) -> str:
    place = "" if step.layer is None else f"@{step.layer}"
    return f"{step.method}{place}:{format_items(step.settings)}"
